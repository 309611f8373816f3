# C types of function_xml.py, for a wheel in which it is compiled (hatch_build.py).

cimport cython


@cython.locals(
    prose=str, name=str, given=str, parameters=list, parameter=str, tag=Py_ssize_t, value=str, kwargs=dict, plainest=bint
)
cdef _single(str text, Py_ssize_t start)

@cython.locals(wrapped=bint)
cdef str _value(str text, Py_ssize_t start, Py_ssize_t end)
