"""Edges, domains, tables and tools that are known for a small service, and what cannot be expressed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentmill.synthesis.environments.toolbox.toolbox import Column, Toolbox, read_toolbox
from agentmill.synthesis.generators.admission import admit_environment, rejection
from agentmill.synthesis.generators.tool_graph.domains import Domain, find_domains
from agentmill.synthesis.generators.tool_graph.function_tools import read_functions
from agentmill.synthesis.generators.tool_graph.generator import inspiration_of, propose
from agentmill.synthesis.generators.tool_graph.given_tools import Specification
from agentmill.synthesis.generators.tool_graph.graph import count_edges, domains_of, edges_of
from agentmill.synthesis.generators.tool_graph.naming import identified, plural, safe, singular
from agentmill.synthesis.generators.tool_graph.openapi import read_openapi
from agentmill.synthesis.generators.tool_graph.resources import MOST_ARGUMENTS, Understood, understand
from agentmill.synthesis.generators.tool_graph.specifications import read_specifications
from agentmill.synthesis.generators.tool_graph.tables import MOST_COLUMNS

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
STATUS = {"type": "string", "enum": ["open", "closed", "cancelled"]}


def function(name: str, result: dict[str, Any] | None = None, /, **arguments: Any) -> dict[str, Any]:
    """A function tool that requires its arguments; ``result`` are the fields of the rows that it lists."""
    schema = {"type": "object", "properties": arguments, "required": [*arguments]}
    rows = {"type": "array", "items": {"type": "object", "properties": result}}
    return {
        "name": name,
        "description": name,
        "parameters": schema,
        **({} if result is None else {"outputSchema": rows}),
    }


USER = {"user_id": NUMBER, "name": TEXT, "city": TEXT}
TICKET = {"id": NUMBER, "userId": NUMBER, "status": STATUS, "name": TEXT}
SHOP = [
    function("list_users", USER),
    function("list_tickets_of_user", TICKET, user_id=NUMBER),
    function("create_ticket", TICKET, user_id=NUMBER, name=TEXT),
    function("cancel_ticket", TICKET, ticket_id=NUMBER),
    function("list_lamps", {"lamp_id": NUMBER, "name": TEXT, "colour": TEXT}),
    function("rename_lamp", {"lamp_id": NUMBER}, lamp_id=NUMBER, name=TEXT),
]


def understood(entries: list[Any]) -> list[Understood]:
    found = list(understand(read_functions(entries, "f").tools))
    assert all(isinstance(each, Understood) for each in found)
    return [each for each in found if isinstance(each, Understood)]


def domains(*entries: Any, most_tools: int = 40) -> list[Domain]:
    return find_domains([read_functions(list(entries), "f")], most_tools)


def toolbox_of(*entries: Any) -> Toolbox:
    """The toolbox of tools that are one domain."""
    found = domains(*entries)[0].toolbox
    assert found is not None
    return found


def reasons(*entries: Any) -> dict[str, str]:
    """The reason of each tool that is not made, by its name."""
    return {each.tool_id.rpartition("/")[2]: each.reason for domain in domains(*entries) for each in domain.unusable}


def test_edges_are_fields_of_results_that_arguments_take_by_resource_and_type() -> None:
    edges = [(each.source[2:], each.target[2:], each.field) for each in edges_of(understood(SHOP))]
    assert edges == [
        ("list_users", "list_tickets_of_user", "user.id"),
        ("list_users", "create_ticket", "user.id"),
        ("list_tickets_of_user", "cancel_ticket", "ticket.id"),
        ("list_tickets_of_user", "create_ticket", "user.id"),
        ("list_tickets_of_user", "create_ticket", "ticket.name"),
        ("create_ticket", "cancel_ticket", "ticket.id"),
        ("create_ticket", "list_tickets_of_user", "user.id"),
        ("cancel_ticket", "list_tickets_of_user", "user.id"),
        ("cancel_ticket", "create_ticket", "user.id"),
        ("cancel_ticket", "create_ticket", "ticket.name"),
        ("list_lamps", "rename_lamp", "lamp.id"),
        ("list_lamps", "rename_lamp", "lamp.name"),
    ]


def test_edges_are_counted_by_resource_without_listing_them() -> None:
    tools = understood([*SHOP, *ring("ant", "bee", "cat"), function("rename_user", user_id=NUMBER, name=TEXT)])
    nouns = {tool.tool.tool_id: tool.noun for tool in tools}
    listed = Counter((nouns[each.source], nouns[each.target]) for each in edges_of(tools))
    assert {pair: n for pair, n in count_edges(tools).items() if n} == listed


def test_another_type_is_no_edge_and_an_unknown_one_is() -> None:
    def edges(kind: dict[str, str]) -> int:
        return len(list(edges_of(understood([SHOP[0], function("delete_user", user_id=kind)]))))

    assert [edges(kind) for kind in (NUMBER, {"type": "number"}, {}, TEXT)] == [1, 1, 1, 0]


def test_a_tool_without_a_result_counts_with_the_whole_row() -> None:
    tools = understood([function("list_users"), function("rename_user", user_id=NUMBER, name=TEXT)])
    assert [(each.source, each.field) for each in edges_of(tools)] == [
        ("f/list_users", "user.id"),
        ("f/list_users", "user.name"),
    ]


def test_domains_are_connected_components_in_the_order_of_their_first_tools() -> None:
    groups, cut = domains_of(understood(SHOP), 40)
    assert [[tool.tool.name for tool in group] for group in groups] == [
        ["list_users", "list_tickets_of_user", "create_ticket", "cancel_ticket"],
        ["list_lamps", "rename_lamp"],
    ]
    assert cut == 0


def ring(*nouns: str) -> list[dict[str, Any]]:
    """Resources that each refer to the one before, the first to the last."""
    found = []
    for number, noun in enumerate(nouns):
        other = {f"{nouns[number - 1]}_id": NUMBER}
        found += [
            function(f"list_{noun}s", {f"{noun}_id": NUMBER, "name": TEXT, **other}),
            function(f"create_{noun}", {f"{noun}_id": NUMBER}, name=TEXT, **other),
        ]
    return found


def test_a_large_domain_is_divided_where_it_hangs_together_least() -> None:
    bridge = function("create_ship", {"ship_id": NUMBER}, name=TEXT, bay_id=NUMBER, cat_id=NUMBER)
    tools = [*ring("ant", "bee", "cat"), *ring("bay", "pier", "ship")[:-1], bridge]
    whole, _ = domains_of(understood(tools), 12)
    parts, cut = domains_of(understood(tools), 7)
    assert [len(group) for group in whole] == [12]
    assert [sorted({tool.noun for tool in group}) for group in parts] == [
        ["ant", "bee", "cat"],
        ["bay", "pier", "ship"],
    ]
    assert cut > 0
    found = find_domains([read_functions(tools, "f")], 7)
    assert found[0].counts["edges_between_domains"] == cut
    ships = next(domain.toolbox for domain in found if domain.toolbox and domain.toolbox.tables[-1].name == "ships")
    assert ships.column("ships.cat_id")[1].references == ""
    assert ships.column("ships.bay_id")[1].references == "bays"


def test_files_of_one_name_are_told_apart() -> None:
    broken = {**SHOP[0], "name": "list_guests", "parameters": 3}
    first = read_functions([broken], "tools.json")
    second = read_functions([function("list_guests", {"guest_id": NUMBER, "name": TEXT})], "tools.json")
    made, failed = find_domains([first, second], 40)
    assert made.tools == ("tools.json/list_guests#2",) or failed.unusable
    ids = [*made.tools, *(each.tool_id for each in (*made.unusable, *failed.unusable))]
    assert sorted(ids) == ["tools.json/list_guests", "tools.json/list_guests#2"]


def test_tools_of_one_resource_stay_together_however_many_there_are() -> None:
    tools = [SHOP[0], *(function(f"find_users_by_{name}", USER, **{name: TEXT}) for name in ("name", "city"))]
    (domain,) = domains(*tools, most_tools=2)
    assert len(domain.tools) == 3
    assert domain.counts["domains_over_most_tools"] == 1


def test_tables_have_the_columns_of_results_and_arguments_with_their_references() -> None:
    people, tickets = toolbox_of(*SHOP[:4]).tables
    assert (people.name, people.noun, people.key) == ("users", "user", "user_id")
    assert [column.name for column in people.columns] == ["user_id", "name", "city"]
    assert tickets.columns == (
        Column(name="ticket_id", type="integer", label="ticket number"),
        Column(name="user_id", type="integer", label="user", references="users"),
        Column(name="status", type="text", label="status", values=("open", "closed", "cancelled")),
        Column(name="name", type="text", label="name"),
    )


def test_each_effect_becomes_its_statement() -> None:
    change = function("update_ticket", TICKET, ticket_id=NUMBER, name=TEXT)
    remove = function("delete_ticket", None, ticket_id=NUMBER)
    tools = {tool.name: tool for tool in toolbox_of(*SHOP[:4], change, remove).tools}
    shown = "SELECT ticket_id AS id, user_id, status, name FROM tickets WHERE"
    assert tools["list_tickets_of_user"].returns == f"{shown} user_id = :user_id ORDER BY ticket_id"
    assert tools["create_ticket"].writes == (
        "INSERT INTO tickets (user_id, name, status) VALUES (:user_id, :name, 'open')",
    )
    assert tools["create_ticket"].request == "make a new ticket of {user_id} with name {name}"
    assert tools["cancel_ticket"].writes == ("UPDATE tickets SET status = 'cancelled' WHERE ticket_id = :ticket_id",)
    assert tools["cancel_ticket"].request == "cancel {ticket_id}"
    assert tools["update_ticket"].writes == ("UPDATE tickets SET name = :name WHERE ticket_id = :ticket_id",)
    assert (
        tools["update_ticket"].requires[1].query
        == "SELECT (name IS NOT :name) FROM tickets WHERE ticket_id = :ticket_id"
    )
    assert tools["delete_ticket"].writes == ("DELETE FROM tickets WHERE ticket_id = :ticket_id",)
    assert tools["delete_ticket"].columns == {"number_of_tickets": ""}


def test_what_is_referred_to_cannot_be_removed() -> None:
    (remove,) = [
        tool
        for tool in toolbox_of(*SHOP[:4], function("delete_user", None, user_id=NUMBER)).tools
        if tool.name == "delete_user"
    ]
    assert remove.requires[-1].query == "SELECT count(*) = 0 FROM tickets WHERE user_id = :user_id"


def test_the_first_argument_tells_which_row_a_function_changes() -> None:
    assign = function("assign_agent", None, ticket_id=NUMBER, agent_id=NUMBER)
    tools = {
        tool.name: tool
        for tool in toolbox_of(*SHOP[:4], function("list_agents", {"agent_id": NUMBER, "name": TEXT}), assign).tools
    }
    assert tools["assign_agent"].writes == ("UPDATE tickets SET agent_id = :agent_id WHERE ticket_id = :ticket_id",)


def test_tools_that_only_write_are_tried_out_without_a_question() -> None:
    (domain,) = domains(function("create_user", USER, name=TEXT), function("delete_user", None, user_id=NUMBER))
    environment = propose(inspiration_of(domain), 6, 1)
    assert environment is not None
    assert rejection(admit_environment(environment)) is None


def test_a_creation_is_of_what_its_result_identifies() -> None:
    book = function("book_lamp", {"loan_id": NUMBER, "lamp_id": NUMBER, "day": TEXT}, lamp_id=NUMBER, day=TEXT)
    assert [table.name for table in toolbox_of(SHOP[4], book).tables] == ["lamps", "loans"]


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (function("explode_ticket", None, ticket_id=NUMBER), "unknown_effect"),
        (function("update_ticket", None, ticket_id=NUMBER, name={"type": "object"}), "nested_argument"),
        (function("find_tickets_by_query", TICKET, wanted=TEXT), "unknown_argument"),
        (function("delete_ticket", None, name=TEXT), "no_key"),
        (function("create_ticket_note", {"id": NUMBER}), "no_argument"),
        (function("compute", None, formula=TEXT), "no_resource"),
        (function("get_weather", {"celsius": NUMBER}, city=TEXT), "no_key"),
        (function("close_box", {"box_id": NUMBER, "status": STATUS}, box_id=NUMBER), "unreachable_key"),
        ({"name": "countTickets", "parameters": {}, "outputSchema": {"type": "integer"}}, "no_row"),
        ({"name": "listUsers", "parameters": {}}, "name_twice"),
        ({"name": "broken", "parameters": [1]}, "malformed"),
    ],
)
def test_a_tool_that_cannot_be_expressed_has_a_reason(tool: dict[str, Any], reason: str) -> None:
    assert reasons(*SHOP, tool) == {tool["name"]: reason}


def test_a_status_of_one_value_is_no_effect() -> None:
    done = {"done_id": NUMBER}
    item = {"item_id": NUMBER, "status": {"type": "string", "enum": ["closed"]}, **done}
    change = function("set_item_status", item, item_id=NUMBER, status=item["status"])
    assert reasons(function("list_items", item), function("close_item", item, item_id=NUMBER), change) == {
        "close_item": "unknown_effect",
        "set_item_status": "unknown_effect",
    }


def test_the_resource_of_a_tool_that_is_not_made_is_no_resource() -> None:
    tools = [
        function("dust_shelf", None, shelf_id=NUMBER),
        function("list_books", {"book_id": NUMBER, "title": TEXT, "shelf_id": NUMBER}),
    ]
    toolbox = toolbox_of(*tools)
    assert [table.name for table in toolbox.tables] == ["books"]
    assert toolbox.column("books.shelf_id")[1].references == ""
    assert reasons(*tools) == {"dust_shelf": "unknown_effect"}


def test_optional_arguments_are_required_of_writes_and_left_out_of_reads() -> None:
    create, listed = function("create_user", USER, name=TEXT, city=TEXT), function("list_users", USER, city=TEXT)
    create["parameters"]["required"], listed["parameters"]["required"] = ["name"], []
    (domain,) = domains(listed, create)
    assert domain.toolbox is not None
    assert [[each.name for each in tool.parameters] for tool in domain.toolbox.tools] == [[], ["name", "city"]]
    assert domain.notes["arguments_left_out"] == {"list_users": ["city"]}
    assert domain.notes["arguments_required"] == {"create_user": ["city"]}
    assert (domain.counts["arguments_left_out"], domain.counts["arguments_required"]) == (1, 1)


def test_an_optional_reference_lists_by_it_where_there_is_no_other_argument() -> None:
    listed = function("list_tickets", TICKET, user_id=NUMBER, status=STATUS)
    listed["parameters"]["required"] = []
    tools = {tool.name: tool for tool in toolbox_of(SHOP[0], listed).tools}
    assert [each.name for each in tools["list_tickets"].parameters] == ["user_id"]


def test_wide_rows_and_many_arguments_are_cut_and_counted() -> None:
    many = {f"field{number:02}": TEXT for number in range(MOST_COLUMNS + 4)}
    create = function("create_thing", {"thing_id": NUMBER}, **many)
    create["parameters"]["required"] = ["field05"]
    (domain,) = domains(function("list_things", {"thing_id": NUMBER, **many}), create)
    assert domain.toolbox is not None
    assert len(domain.toolbox.tables[0].columns) == MOST_COLUMNS + 1
    assert domain.counts["fields_left_out"] == 4
    parameters = [each.name for each in domain.toolbox.tool("create_thing").parameters]
    assert parameters == [f"field{number:02}" for number in range(MOST_ARGUMENTS)]
    assert all(column.optional == (column.name not in parameters) for column in domain.toolbox.tables[0].columns[1:])
    environment = propose(inspiration_of(domain), 8, 1)
    assert environment is not None
    assert rejection(admit_environment(environment)) is None


def test_types_that_a_toolbox_lacks_are_changed_and_counted() -> None:
    row = {
        "id": {"type": "string"},
        "price": {"type": "number", "minimum": 0.5},
        "sold": {"type": "boolean"},
        "name": TEXT,
    }
    (domain,) = domains(function("list_cars", row))
    assert domain.toolbox is not None
    assert [(each.name, each.type, each.values, each.least) for each in domain.toolbox.tables[0].columns[:3]] == [
        ("car_id", "integer", (), None),
        ("price", "integer", (), 1),
        ("sold", "text", ("true", "false"), None),
    ]
    assert domain.notes["types_changed"] == {"cars": ["car_id", "price", "sold"]}


def test_rows_are_within_what_the_schemas_allow() -> None:
    row = {
        "id": NUMBER,
        "size": {"type": "integer", "enum": [1, 2, 5, 100]},
        "depth": {"type": "integer", "maximum": -10},
        "opacity": {"type": "number", "minimum": 0.1, "maximum": 0.9},
        "kind": {"const": "led"},
    }
    (domain,) = domains(function("list_lamps", row), function("create_lamp", row))
    environment = propose(inspiration_of(domain), 8, 1)
    assert environment is not None
    assert rejection(admit_environment(environment)) is None
    toolbox = read_toolbox(environment.source)
    names = [column.name for column in toolbox.tables[0].columns]
    rows = [dict(zip(names, each, strict=True)) for each in toolbox.rows["lamps"]]
    assert {each["size"] for each in rows} == {"1", "2", "5", "100"}
    assert all(each["depth"] <= -10 for each in rows)
    assert {each["opacity"] for each in rows} <= {0, 1}
    assert {each["kind"] for each in rows} == {"led"}
    assert domain.notes["types_changed"] == {"lamps": ["size", "opacity"]}


def test_names_that_sql_has_are_changed_and_noted() -> None:
    row = {"id": NUMBER, "from": TEXT, "primary": TEXT, "orderNo": TEXT}
    (domain,) = domains(function("listTrips", row))
    assert domain.toolbox is not None
    assert list(domain.toolbox.tools[0].columns) == ["id", "from_", "primary_", "order_no"]
    assert domain.notes["names_changed"] == {
        "listTrips": "list_trips",
        "from": "from_",
        "primary": "primary_",
        "orderNo": "order_no",
    }


def test_addresses_and_methods_tell_resource_and_effect() -> None:
    schema = {"type": "object", "properties": {"id": NUMBER, "state": STATUS, "note": TEXT, "shopId": NUMBER}}
    shop = {"type": "object", "properties": {"id": NUMBER, "name": TEXT}}

    def operation(row: dict[str, Any], *path: str, **body: Any) -> dict[str, Any]:
        parameters = [{"name": name, "in": "path", "required": True, "schema": NUMBER} for name in path]
        given = {"properties": body, "required": [*body]}
        content = {"application/json": {"schema": {"type": "array", "items": row}}}
        asked = {"requestBody": {"content": {"application/json": {"schema": given}}}} if body else {}
        return {"parameters": parameters, "responses": {"200": {"content": content}}, **asked}

    paths = {
        "/api/v1/shops": {"get": operation(shop)},
        "/api/v1/shops/{id}/repairs": {"get": operation(schema, "id"), "post": operation(schema, "id", note=TEXT)},
        "/api/v1/shops/{shopId}/repairs/{id}": {"put": operation(schema, "shopId", "id", note=TEXT)},
        "/api/v1/repairs/search": {"post": operation(schema, note=TEXT)},
        "/api/v1/repairs/{repair}/close": {"put": operation(schema, "repair")},
        "/api/v1/repairs/{repairId}/note": {"get": operation(schema, "repairId")},
        "/api/v1/repairs": {"delete": operation(schema)},
    }
    found = list(understand(read_openapi({"openapi": "3.0.0", "paths": paths}, "f").tools))
    assert [(each.noun, each.effect) for each in found if isinstance(each, Understood)] == [
        ("shop", "read"),
        ("repair", "read"),
        ("repair", "create"),
        ("repair", "change"),
        ("repair", "read"),
        ("repair", "step"),
        ("repair", "read"),
    ]
    assert [error.reason for _, error in (each for each in found if isinstance(each, tuple))] == ["unknown_effect"]
    (domain, rest) = find_domains([read_openapi({"openapi": "3.0.0", "paths": paths}, "f")], 40)
    assert (len(domain.tools), len(rest.unusable)) == (7, 1)
    assert domain.toolbox is not None
    changed = next(tool for tool in domain.toolbox.tools if tool.name.startswith("put") and "note" in tool.request)
    assert changed.writes == ("UPDATE repairs SET note = :note WHERE repair_id = :id",)
    assert "SELECT shop_id = :shop_id FROM repairs WHERE repair_id = :id" in [each.query for each in changed.requires]
    environment = propose(inspiration_of(domain), 12, 3)
    assert environment is not None
    assert rejection(admit_environment(environment)) is None


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_drawn_by_seed_and_hold_every_value_to_choose_from(seed: int) -> None:
    found = find_domains(read_specifications(["bundled:hotel"]), 40)[0]
    one, again = propose(inspiration_of(found), 9, seed), propose(inspiration_of(found), 9, seed)
    other = propose(inspiration_of(found), 9, seed + 1)
    assert one is not None
    assert other is not None
    assert one == again
    assert one.environment_id != other.environment_id
    assert one.source != other.source
    assert one.structure_digest == other.structure_digest
    rows = read_toolbox(one.source).rows
    assert {len(each) for each in rows.values()} == {9}
    assert Counter(row[1] for row in rows["bookings"]) == {"requested": 3, "confirmed": 3, "cancelled": 3}
    assert {row[2] for row in rows["bookings"]} <= set(range(1, 7))  # some guests have none, so they can be removed
    assert len({row[1] for row in rows["guests"]}) == 9


def test_every_given_tool_is_made_or_has_a_reason() -> None:
    given: list[Specification] = read_specifications(["bundled:hotel", "bundled:parcels"])
    found = find_domains(given, 40)
    made = [tool for domain in found for tool in domain.tools]
    dropped = {each.tool_id: each.reason for domain in found for each in domain.unusable}
    assert sorted([*made, *dropped]) == sorted(tool.tool_id for each in given for tool in each.tools)
    assert dropped == {
        "hotel.yaml/printInvoice": "unknown_effect",
        "hotel.yaml/quotePrice": "no_key",
        "parcels.json/weigh_parcel": "unknown_effect",
    }


@pytest.mark.parametrize(
    ("name", "one", "many"),
    [
        ("bookings", "booking", "bookings"),
        ("order_lines", "order_line", "order_lines"),
        ("companies", "company", "companies"),
        ("addresses", "address", "addresses"),
        ("houses", "house", "houses"),
        ("statuses", "status", "statuses"),
        ("people", "person", "people"),
        ("movies", "movie", "movies"),
        ("quizzes", "quiz", "quizzes"),
        ("caches", "cache", "caches"),
        ("free_aliases", "free_alias", "free_aliases"),
        ("news", "news", "newses"),
        ("y", "y", "ys"),
    ],
)
def test_nouns_in_singular_and_plural(name: str, one: str, many: str) -> None:
    assert (singular(name), plural(one)) == (one, many)


def test_names_as_a_toolbox_takes_them() -> None:
    given = ["getBookingHTTPStatus", "guest-id", "2nd", "select", "finish", "Straße", "日本"]
    assert [safe(name) for name in given] == [
        "get_booking_http_status",
        "guest_id",
        "x_2nd",
        "select_",
        "finish_",
        "strae",
        "x",
    ]
    assert [identified(name, "room") for name in ("id", "guestId", "guest_uuid", "paid", "name")] == [
        "room",
        "guest",
        "guest",
        None,
        None,
    ]
