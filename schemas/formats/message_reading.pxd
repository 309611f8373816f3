# C types of message_reading.py, for a wheel in which it is compiled (hatch_build.py).

cimport cython

from schemas.formats.conversation cimport Conversation


cdef class MessageReader:
    cdef public object flag
    cdef public object dialect
    cdef public Conversation talk
    cdef object _call_reader
    cdef set _ids
    cdef list _waiting
    cdef list _ending
    cdef list _results
    cdef bint _awaits
    cdef tuple _openings
    cdef bint _only_openings
    cdef object _wordings

    cdef _hear(self, str text)
    cdef bint _is_result(self, str text)
    cdef _begin_turn(self)
    cdef _say(self, str text, Py_ssize_t index, reasoning, dict fields)
    cdef _finished(self)
    @cython.locals(content=list, results=list, call=Py_ssize_t, place=Py_ssize_t, result=Py_ssize_t)
    cdef _link(self)
