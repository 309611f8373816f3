"""The names that ADP allows for the language of a code action, odd ones included, and the way to one from any other."""

from __future__ import annotations

_NAMES = """
    actionscript ada afl agda angular apache applescript aql arduino arm array as3 asciidoc asm asp aspx assembly
    autohotkey awk bash basic bat batch batchfile bibtex bison blade brainfuck breadcrumbs buildx c cabal cad
    cafeobj ceylon cfg cfml chapel cil cisco clojure cmake cmd cobol code coffeescript coldfusion commandline conf
    console coq cpp cql cs csharp css csv cuda cypher cython d dart dax delphi diff django dockefile docker
    dockerfile dotenv doxygen dsl dtd dts eigenmath ejs elisp elixir env erb erlang euler excel flatbuffers flux
    forth fortran freemarker fsharp futura gamescript gap genetic gherkin git glsl gml gnuplot go golang gp gradle
    graphql groff groovy handlebars haskell hcl hlsl hocon hol hscript html http husk hypothetical ics idl idris
    ini isabelle jags java javascipt javascript javasript jenkins jinja jl jldoctest jquery js json jsp jsx julia
    kconfig kotlin language latex ld lean less liquid lisp llvm lua m4 make makefile maple markdown math
    mathematica matlab maxmsp mdx mermaid meson ml mongo mongodb moonscript mumps mysql nasm netlogo nginx nit nix
    node npm nsis objc objectscript obscuria ocaml octave openqasm ourcodelang output p4 pari pascal pddl perl
    pgsql php phpt pinescript plaintext plantuml plpgsql plsql postgres postgresql powerapps powershell pro prolog
    properties proto protobuf ps pseudo pseudo_code pseudo_rust pseudocode puppet py python python3 python4 qlik
    qmake qml qsharp quantum r racket rdf react redis regex rest restructuredtext rst ruby rust s sage sagemath
    sas sass scad scala scheme scificode scilab scss sh shakespeare shell simpli sm smalltalk smarty smile sml
    solidity sonnet sparql sql sqlite stan stata svelte svg swift swig systemverilog targetlang targetql terraform
    tex text thrift tlbuild tomail toml troff ts tsx turtle twig txt typescript usql vb vba vbnet vbs vbscript
    vcard velocity verilog vhdl vim voxelscript vtl vue wasm wolfram xaml xbasic xhtml xml xpath xpp xslt xyz yaml
    yang yml
"""
LANGUAGES = frozenset(_NAMES.split())

ALIASES = {
    "c#": "csharp",
    "c++": "cpp",
    "f#": "fsharp",
    "ipython": "python",
    "jupyter": "python",
    "node.js": "node",
    "nodejs": "node",
    "objective-c": "objc",
    "q#": "qsharp",
    "shell-session": "console",
    "zsh": "shell",
}
"""Common names of languages that ADP knows under another."""

OTHER = "code"
"""What a language is called that ADP does not know."""


def legal_language(name: str) -> str:
    """``name`` if ADP allows it, else the nearest name that it does."""
    if name in LANGUAGES:
        return name
    lower = name.strip().lower()
    return lower if lower in LANGUAGES else ALIASES.get(lower, OTHER)
