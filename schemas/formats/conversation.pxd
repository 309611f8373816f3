# C types of conversation.py, for a wheel in which it is compiled (hatch_build.py).

cdef class Conversation:
    cdef public str system_prompt
    cdef public list content
    cdef public Py_ssize_t turn
    cdef public list starts
    cdef public dict fields
    cdef public dict call_fields
    cdef public dict spelling
    cdef public object remarks
    cdef public list unnumbered
    cdef object __weakref__
