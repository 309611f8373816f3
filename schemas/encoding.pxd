# C types of encoding.py, for a wheel in which it is compiled (hatch_build.py).

cdef set _kinds(object values)

cdef bint _is_json(object value, Py_ssize_t levels=*)
