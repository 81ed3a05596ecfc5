/* The functions of forward.c for Python, which passes addresses of structs (native.py). */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "kernels.h"

static PyObject *finished(int is_done)
{
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
        "{s:n,s:n,s:n,s:n,s:n}", "Product", (Py_ssize_t)sizeof(struct product), "Multiplication",
        (Py_ssize_t)sizeof(struct multiplication), "Layer", (Py_ssize_t)sizeof(struct layer), "States",
        (Py_ssize_t)sizeof(struct states), "Forward", (Py_ssize_t)sizeof(struct forward));
}

static int is_part(PyObject *owners, PyObject *names, PyObject *parts, Py_ssize_t i)
{
    PyObject *part = PyDict_GetItemWithError(PyList_GetItem(owners, i), PyList_GetItem(names, i));
    return part && part == PyList_GetItem(parts, i);
}

static int is_there(PyObject *owners, PyObject *names, PyObject *addresses, Py_ssize_t i, PyObject *data_ptr)
{
    PyObject *weight = PyDict_GetItemWithError(PyList_GetItem(owners, i), PyList_GetItem(names, i));
    PyObject *address = weight ? PyObject_CallMethodObjArgs(weight, data_ptr, NULL) : NULL;
    const int is_same = address && PyObject_RichCompareBool(address, PyList_GetItem(addresses, i), Py_EQ) == 1;
    Py_XDECREF(address);
    return is_same;
}

/* are_same(owners, names, parts, owners of weights, their names, their addresses): whether each dict in a list has
 * that part by that name, and a weight at that address. Python would take a quarter of a millisecond.
 */
static PyObject *python_are_same(PyObject *module, PyObject *args)
{
    PyObject *lists[6], *data_ptr = PyUnicode_InternFromString("data_ptr");
    int are_same = 1;
    (void)module;
    for (int i = 0; i < 6; i++)
        if (!(lists[i] = PyTuple_GetItem(args, i)))
            return NULL;
    for (Py_ssize_t i = 0; are_same && i < PyList_Size(lists[0]); i++)
        are_same = is_part(lists[0], lists[1], lists[2], i);
    for (Py_ssize_t i = 0; are_same && i < PyList_Size(lists[3]); i++)
        are_same = is_there(lists[3], lists[4], lists[5], i, data_ptr);
    Py_XDECREF(data_ptr);
    PyErr_Clear();
    return PyBool_FromLong(are_same);
}

static PyMethodDef METHODS[] = {
    {"are_same", python_are_same, METH_VARARGS, "Whether dicts have these parts, and weights at these addresses."},
    {"multiply", python_multiply, METH_O, "Computes a Multiplication."},
    {"forward", python_forward, METH_O, "Computes a Forward."},
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
