# C types of message_reading.py, for a wheel in which it is compiled (hatch_build.py).

from schemas.formats.conversation cimport Conversation


cdef class MessageReader:
    cdef public object flag
    cdef public object dialect
    cdef public Conversation talk
    cdef object _call_reader
    cdef set _ids
    cdef list _waiting
    cdef list _results
    cdef bint _awaits
    cdef object _wordings
