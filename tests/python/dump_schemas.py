"""Prints every version of every operator schema as JSON: a list of objects.

Types of parameters are type variables or fixed types as the schema spells them. Type variables map to the
numbers of TensorProto.DataType they allow as elements (of maps: as values), and to the kinds of values: tensor,
sequence, optional, optional_sequence, map, records (a sequence of maps).

dump_schemas.py DOMAIN: the schemas of a domain that ONNX Runtime defines, in place of those of ai.onnx.
"""

import json
import sys

import onnx
from onnx import TensorProto, defs, helper


def parameter(param):
    # ONNX Runtime spells the name of the type in another way.
    type_str = param.type_str if hasattr(param, "type_str") else param.typeStr
    return {"name": param.name, "type": type_str, "arity": param.option.name}


def attribute(name, attr):
    default, stated = None, onnx.AttributeProto()
    if hasattr(attr, "default_value"):
        stated = attr.default_value
    else:
        stated.ParseFromString(attr._default_value)
    if stated.type != onnx.AttributeProto.UNDEFINED:
        default = helper.get_attribute_value(stated)
        if isinstance(default, bytes):
            default = default.decode()
        elif isinstance(default, (list, tuple)):
            default = [item.decode() if isinstance(item, bytes) else item for item in default]
    return {"name": name, "kind": attr.type.name, "required": attr.required, "default": default}


WRAPPERS = {
    "": "tensor", "seq": "sequence", "optional": "optional", "optional(seq": "optional_sequence", "map": "map",
    "seq(map": "records",
}


def split_type(text):
    """The kind of a type and the name of its elements: `seq(tensor(float))` is ("sequence", "float")."""
    wrapper, _, inner = text.rstrip(")").rpartition("(")
    if wrapper.endswith("map"):
        return WRAPPERS[wrapper], inner.split(", ")[1]
    return WRAPPERS.get(wrapper.removesuffix("tensor").removesuffix("(")), inner


def element_types(strings):
    names = [name for kind, name in map(split_type, strings) if kind]
    return sorted({getattr(TensorProto, name.upper()) for name in names})


def kinds(strings):
    return sorted({kind for kind, _ in map(split_type, strings) if kind})


def schema(entry):
    return {
        "domain": entry.domain,
        "name": entry.name,
        "since": entry.since_version,
        "inputs": [parameter(param) for param in entry.inputs],
        "outputs": [parameter(param) for param in entry.outputs],
        "attributes": [attribute(name, attr) for name, attr in entry.attributes.items()],
        "types": {
            constraint.type_param_str: element_types(constraint.allowed_type_strs)
            for constraint in entry.type_constraints
        },
        "kinds": {
            constraint.type_param_str: kinds(constraint.allowed_type_strs)
            for constraint in entry.type_constraints
        },
    }


def all_schemas():
    if len(sys.argv) == 1:
        return defs.get_all_schemas_with_history()
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    return get_all_operator_schema()


entries = all_schemas()
wanted = [entry for entry in entries if entry.domain in sys.argv[1:] or len(sys.argv) == 1]
print(json.dumps([schema(entry) for entry in wanted]))
