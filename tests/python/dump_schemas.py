"""Prints every version of every operator schema as JSON: a list of objects.

Types of parameters are type variables or fixed types as the schema spells them. Type variables map to the
numbers of TensorProto.DataType they allow; sequences, optionals and maps are left out.
"""

import json

import onnx
from onnx import TensorProto, defs, helper


def parameter(param):
    return {"name": param.name, "type": param.type_str, "arity": param.option.name}


def attribute(name, attr):
    default = None
    if attr.default_value.type != onnx.AttributeProto.UNDEFINED:
        default = helper.get_attribute_value(attr.default_value)
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


print(json.dumps([schema(entry) for entry in defs.get_all_schemas_with_history()]))
