/* The functions of forward.c for Python, which passes addresses of structs (native.py). */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "kernels.h"

static PyObject *finished(int is_done)
{
    if (is_done < 0) {
        PyErr_SetString(PyExc_IndexError, "An index is not a row of the weights.");
        return NULL;
    }
    if (!is_done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *of_python(PyObject *address, int (*function)(const void *))
{
    const void *given = PyLong_AsVoidPtr(address);
    int is_done;
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    is_done = function(given);
    Py_END_ALLOW_THREADS
    return finished(is_done);
}

static PyObject *python_multiply(PyObject *module, PyObject *address)
{
    (void)module;
    return of_python(address, multiply);
}

static PyObject *python_forward(PyObject *module, PyObject *address)
{
    (void)module;
    return of_python(address, forward);
}

static PyObject *python_unpack(PyObject *module, PyObject *address)
{
    (void)module;
    return of_python(address, unpack);
}

static PyObject *python_sets(PyObject *module, PyObject *none)
{
    PyObject *names = PyList_New(0);
    (void)module, (void)none;
    for (int set = 0; names && set_name(set); set++) {
        const char *name = set_name(set);
        PyObject *item = *name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
        if (!item || PyList_Append(names, item) < 0)
            Py_CLEAR(names);
        Py_XDECREF(item);
    }
    return names;
}

/* The sizes of the structs, by which Python checks its own. */
static PyObject *python_sizes(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "Weights", (Py_ssize_t)sizeof(struct weights), "Product",
        (Py_ssize_t)sizeof(struct product), "Multiplication", (Py_ssize_t)sizeof(struct multiplication), "Unpacking",
        (Py_ssize_t)sizeof(struct unpacking), "Layer", (Py_ssize_t)sizeof(struct layer), "States",
        (Py_ssize_t)sizeof(struct states), "Forward", (Py_ssize_t)sizeof(struct forward));
}

static PyMethodDef METHODS[] = {
    {"multiply", python_multiply, METH_O, "Computes a Multiplication."},
    {"forward", python_forward, METH_O, "Computes a Forward."},
    {"unpack", python_unpack, METH_O, "Computes an Unpacking."},
    {"instruction_sets", python_sets, METH_NOARGS, "The instruction sets; None for one that this CPU lacks."},
    {"sizes", python_sizes, METH_NOARGS, "The sizes of the structs."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "_kernels", .m_size = -1, .m_methods = METHODS};

PyMODINIT_FUNC PyInit__kernels(void)
{
    find_threads();
    return PyModule_Create(&MODULE);
}
