"""Exports networks of timm, torchvision and transformers with random weights, each into a folder with its inputs, for `bench`:

    networks.py DIR [timm:NAME | tv:NAME | hf:NAME[+lm|+s2s]] ...

Without names: those of tests/benchmarks/networks.md. Needs torch, torchvision, timm, transformers, onnx and onnxscript.
"""

import inspect
import sys
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

NETWORKS = """
timm:convmixer_768_32 timm:convnext_tiny timm:crossvit_18_240 timm:davit_tiny timm:edgenext_small timm:efficientformerv2_s0
timm:efficientnet_b0 timm:eva02_tiny_patch14_224 timm:fastvit_t8 timm:focalnet_tiny_srf timm:gcvit_xxtiny timm:ghostnet_100
timm:hrnet_w18_small timm:inception_v3 timm:lcnet_050 timm:levit_128 timm:mambaout_femto timm:mobilenetv4_conv_small
timm:mobilevit_s timm:mvitv2_tiny timm:nextvit_small timm:pit_s_224 timm:pvt_v2_b0 timm:regnetz_c16 timm:repvit_m1_0
timm:res2net50_26w_4s timm:rexnet_100 timm:sequencer2d_s timm:swiftformer_s timm:swinv2_tiny_window8_256
timm:tnt_s_legacy_patch16_224 timm:volo_d1_224 timm:xcit_nano_12_p8_224
tv:densenet121 tv:maxvit_t tv:r3d_18 tv:raft_small tv:shufflenet_v2_x1_0 tv:swin_t
hf:albert hf:bert hf:big_bird hf:deberta-v2 hf:detr hf:gpt2+lm hf:llama+lm hf:segformer hf:t5+s2s hf:wav2vec2 hf:whisper hf:xlnet
""".split()

#: Sizes that configurations name in many ways. Language models get these, so that two layers of any are alike.
LAYERS = "num_hidden_layers encoder_layers decoder_layers n_layer num_layers num_decoder_layers n_layers".split()
WIDTHS = {"vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 4,
          "head_dim": 64}
TOKENS, ANSWER = 64, 16


def vision(source, name):
    if source == "timm":
        import timm
        network = timm.create_model(name, pretrained=False)
        return network, {"x": torch.randn(1, *network.pretrained_cfg.get("input_size", (3, 224, 224)))}
    from torchvision import models
    network = models.get_model(name, weights=None)
    if name == "raft_small":
        return network, {"image1": torch.randn(1, 3, 128, 128), "image2": torch.randn(1, 3, 128, 128)}
    return network, {"x": torch.randn(1, 3, 16, 112, 112) if "3d" in name else torch.randn(1, 3, 224, 224)}


def text(name):
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    base, _, head = name.partition("+")
    config = CONFIG_MAPPING[base]()
    for key in LAYERS:
        if isinstance(getattr(config, key, None), int):
            setattr(config, key, min(2, getattr(config, key)))
    if head == "lm":
        for key, size in WIDTHS.items():
            if hasattr(config, key):
                setattr(config, key, size)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    config.use_cache = False
    network = {"": AutoModel, "lm": AutoModelForCausalLM, "s2s": AutoModelForSeq2SeqLM}[head].from_config(config)
    tokens = lambda count: torch.randint(3, 200, (1, count))
    match getattr(network, "main_input_name", "input_ids"):
        case "pixel_values":
            size = getattr(config, "image_size", 224)
            size = size if isinstance(size, int) else size[0]
            return network, {"pixel_values": torch.randn(1, 3, size, size)}
        case "input_values":
            return network, {"input_values": torch.randn(1, 16000)}
        case "input_features":
            return network, {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": tokens(8)}
    inputs = {"input_ids": tokens(TOKENS)}
    if "decoder_input_ids" in inspect.signature(network.forward).parameters:
        inputs["decoder_input_ids"] = tokens(ANSWER)
    return network, inputs


def tensors(value):
    """All tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [tensor for part in value for tensor in tensors(part)] if value is not None and not isinstance(value, (str, int, float)) else []


class Flat(torch.nn.Module):
    """A network with inputs in order, and a tuple of tensors as its result."""

    def __init__(self, network, names):
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs):
        named = dict(zip(self.names, inputs))
        return tuple(tensors(self.network(**named) if self.names != ["x"] else self.network(*inputs)))


def export(spec, root):
    source, _, name = spec.partition(":")
    torch.manual_seed(0)
    network, inputs = text(name) if source == "hf" else vision(source, name)
    folder = root / name.replace("+", "_").replace(".", "_")
    (folder / "test_data_set_0").mkdir(parents=True, exist_ok=True)
    flat = Flat(network, list(inputs)).eval()
    with torch.no_grad():
        torch.onnx.export(flat, tuple(inputs.values()), folder / "model.onnx", input_names=list(inputs), dynamo=True,
                          external_data=False)
    for at, info in enumerate(onnx.load(folder / "model.onnx").graph.input):
        tensor = numpy_helper.from_array(inputs[info.name].numpy(), info.name)
        (folder / "test_data_set_0" / f"input_{at}.pb").write_bytes(tensor.SerializeToString())


def main(root, *names):
    failed = []
    for spec in names or NETWORKS:
        try:
            export(spec, Path(root))
        except Exception as error:  # Exporters fail in many ways; the others are exported all the same.
            failed.append(spec)
            print(f"{spec}: {type(error).__name__}: {str(error)[-300:]}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
