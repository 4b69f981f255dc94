"""Prints every version of every operator schema as JSON: a list of objects.

Types of parameters are type variables or fixed types as the schema spells them. Type variables map to the
numbers of TensorProto.DataType they allow; sequences, optionals and maps are left out.

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


def tensor_types(strings):
    names = [text[len("tensor(") : -1] for text in strings if text.startswith("tensor(")]
    return [getattr(TensorProto, name.upper()) for name in names]


def schema(entry):
    return {
        "domain": entry.domain,
        "name": entry.name,
        "since": entry.since_version,
        "inputs": [parameter(param) for param in entry.inputs],
        "outputs": [parameter(param) for param in entry.outputs],
        "attributes": [attribute(name, attr) for name, attr in entry.attributes.items()],
        "types": {
            constraint.type_param_str: tensor_types(constraint.allowed_type_strs)
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
