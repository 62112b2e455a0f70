"""Which architectures can be imported: every one of torchvision's, timm's and transformers' that is named here, with random
weights, each in a process of its own.

    PYTHONPATH=bench/import python -m paragauge_import.reach                            # what is installed
    PYTHONPATH=bench/import python -m paragauge_import.reach torchvision timm/res       # names that begin so
    PYTHONPATH=bench/import python -m paragauge_import.reach --models FILE.py           # the builders of a file, by options() (models.py)

A line each: nodes, those of known ops, bodies, how far output and worst gradient are from the module's in float64, seconds of
the import and of the check; or the refusal. And two of half precision, with autocast and with parameters in it: how far output and
gradients of a step in bfloat16 are from float64's (check_half.py), and those of PyTorch's own on this CPU; or why there is none. Models are made small (images of 96, two layers of width 64) where they let one.
"""

import argparse
import contextlib
import importlib.util
import io
import multiprocessing
import signal
import time
import traceback
import warnings
from pathlib import Path

import torch
from paragauge_import import check, import_model, models, spec
from paragauge_import.half import check_half
from paragauge_import.refusal import Refusal, first_line
from torch import nn

TORCHVISION = ["alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
               "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_large", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
               "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11", "vgg11_bn",
               "vit_b_16", "wide_resnet50_2"]
SIZES = {"inception_v3": 299, "maxvit_t": 224, "vit_b_16": 224}
SEGMENTATION = ["deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large"]
VIDEO = ["r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "swin3d_t"]

# A configuration's class, the model's, and what differs from SMALL.
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
GROUPED = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OLD = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
P64 = {"max_position_embeddings": 64}
LANGUAGE = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", OLD),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4} | P64),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", P64),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", OLD | {"rotary_dim": 8}),
    "opt": ("OPTConfig", "OPTForCausalLM", {"ffn_dim": 128, "word_embed_proj_dim": 64} | P64),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", "FalconForCausalLM", {}),
    "mpt": ("MptConfig", "MptForCausalLM", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "mistral": ("MistralConfig", "MistralForCausalLM", GROUPED | {"sliding_window": 16}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", GROUPED | {"num_local_experts": 4}),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", GROUPED | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", GROUPED | {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "moe_intermediate_size": 64, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", GROUPED | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"state_size": 8}),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "expand": 2, "chunk_size": 16}),
    "rwkv": ("RwkvConfig", "RwkvForCausalLM", {"attention_hidden_size": 64}),
    "bert": ("BertConfig", "BertForMaskedLM", P64),
    "bert_classes": ("BertConfig", "BertForSequenceClassification", P64),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", P64 | {"pad_token_id": 1}),
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM", {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4} | P64),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {"embedding_size": 32} | P64),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {"embedding_size": 32} | P64),
    "deberta_v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]} | P64),
    "mpnet": ("MPNetConfig", "MPNetForMaskedLM", P64),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", {"pad_token_id": 0} | P64),
    "xlnet": ("XLNetConfig", "XLNetLMHeadModel", {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}),
    "fnet": ("FNetConfig", "FNetForMaskedLM", {"tpu_short_seq_length": 32} | P64),
} | {name: (f"{kind}Config" if kind != "Gemma3" else "Gemma3TextConfig", f"{kind}ForCausalLM", GROUPED | more) for name, kind, more in [
    ("llama", "Llama", {}), ("qwen2", "Qwen2", {}), ("qwen3", "Qwen3", {"head_dim": 16}), ("gemma", "Gemma", {"head_dim": 16}),
    ("gemma2", "Gemma2", {"head_dim": 16}), ("gemma3", "Gemma3", {"head_dim": 16}), ("phi", "Phi", {}), ("phi3", "Phi3", {}),
    ("olmo", "Olmo", {}), ("olmo2", "Olmo2", {}), ("cohere", "Cohere", {}), ("stablelm", "StableLm", {}), ("starcoder2", "Starcoder2", {}),
    ("granite", "Granite", {}), ("glm4", "Glm4", {"head_dim": 16}), ("smollm3", "SmolLM3", {})]}
TRANSLATION = {
    "t5": ("T5Config", "T5ForConditionalGeneration", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 512}),
    "bart": ("BartConfig", "BartForConditionalGeneration", {}), "marian": ("MarianConfig", "MarianMTModel", {"pad_token_id": 0})}
TWO_SIDED = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
             "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 512, "max_position_embeddings": 64}
VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8}
VISION = {
    "vit": ("ViTConfig", "ViTForImageClassification", VIT, 32), "deit": ("DeiTConfig", "DeiTForImageClassification", VIT, 32),
    "beit": ("BeitConfig", "BeitForImageClassification", VIT | {"use_relative_position_bias": True}, 32),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", {k: v for k, v in VIT.items() if k != "intermediate_size"}, 32),
    "swin": ("SwinConfig", "SwinForImageClassification", {"image_size": 64, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, 64),
    "segformer": ("SegformerConfig", "SegformerForSemanticSegmentation", {}, 64),
    "convnext": ("ConvNextConfig", "ConvNextForImageClassification", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 64]}, 64)}
PREFER = ("pico", "nano", "atto", "femto", "_tiny", "tiny_", "xxs", "_xs", "_s_", "small", "_s0", "_b0", "_18", "18", "_26", "_50", "base")


class Output(nn.Module):
    """One of the tensors that a model returns."""

    def __init__(self, model, key, **fixed):
        super().__init__()
        self.model, self.key, self.fixed = model, key, fixed

    def forward(self, *args):
        y = self.model(*args, **self.fixed)
        return y if isinstance(y, torch.Tensor) else y[self.key]


def image(size, *more):
    return [f"f32[B,{','.join(map(str, (3, *more, size, size)))}]"]


def builders(of, prefix: str) -> dict:
    return {f"{prefix}/{name}": (lambda b=b: (b(), b.import_options["input"])) for name, b in vars(of).items()
            if hasattr(b, "import_options") and not b.import_options.get("large")}


def cases(file: str | None = None) -> dict:
    """A function by name, that gives a module and its inputs. file: only its builders."""
    if file is not None:
        given = importlib.util.spec_from_file_location(Path(file).stem, file)
        of = importlib.util.module_from_spec(given)
        given.loader.exec_module(of)
        return builders(of, of.__name__)
    found = builders(models, "own")
    with contextlib.suppress(ImportError):
        from torchvision import models as vision
        for name in TORCHVISION:
            more = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
            found[f"torchvision/{name}"] = lambda name=name, more=more: (
                vision.get_model(name, weights=None, num_classes=10, **more), image(SIZES.get(name, 96)))
        for name in SEGMENTATION:
            found[f"torchvision/{name}"] = lambda name=name: (
                Output(vision.get_model(name, weights=None, weights_backbone=None), "out"), image(64))
        for name in VIDEO:
            found[f"torchvision/{name}"] = lambda name=name: (
                vision.get_model(name, weights=None, num_classes=10), image(224 if name in ("mvit_v1_b", "s3d") else 64, 16))
    with contextlib.suppress(ImportError):
        import timm
        for family in timm.list_modules():
            names = timm.list_models(module=family)
            if names:
                name = next((n for p in PREFER for n in names if p in n and "in22" not in n), names[0])
                found[f"timm/{name}"] = lambda name=name: timm_case(timm, name)
    with contextlib.suppress(ImportError):
        import transformers
        for name, (config, kind, given) in LANGUAGE.items():
            def language(config=config, kind=kind, given=given):
                made = getattr(transformers, config)(**SMALL | given)
                made.use_cache = False
                spec.experts_apart(made)
                return Output(getattr(transformers, kind)(made), "logits"), ["i64[B,32]<500"]
            found[f"transformers/{name}"] = language
        for name, (config, kind, given) in TRANSLATION.items():
            def translation(config=config, kind=kind, given=given):
                made = getattr(transformers, config)(**(given if "d_kv" in given else TWO_SIDED | given))
                made.use_cache = False
                model = getattr(transformers, kind)(made)
                return Translation(model), ["i64[B,32]<500", "i64[B,16]<500"]
            found[f"transformers/{name}"] = translation
        for name, (config, kind, given, size) in VISION.items():
            found[f"transformers/{name}"] = lambda config=config, kind=kind, given=given, size=size: (
                Output(getattr(transformers, kind)(getattr(transformers, config)(**given)), "logits"), image(size))
    return found


class Translation(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, decoder_ids):
        return self.model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False).logits


def timm_case(timm, name):
    """With images of 96 where the model takes them, else as it is configured."""
    for more in ({"img_size": 96}, {}, None):
        size = 96
        if more is None:
            more, size = {}, timm.create_model(name).default_cfg["input_size"][-1]
        with contextlib.suppress(TypeError, ValueError, RuntimeError, AssertionError):  # of sizes that don't fit
            module = timm.create_model(name, pretrained=False, num_classes=10, **more).eval()
            with torch.no_grad():
                module(torch.rand(2, 3, size, size))
            return module.train(), image(size)
    raise Refusal("no image size fits")


def too_long(*_):
    raise TimeoutError("takes too long")


def half_text(imported, inputs, key, what) -> str:
    """How far the file's half precision (key: "half", "half_parameters") is from float64, beside PyTorch's own; "NOT LIKE PYTORCH'S"
    where it's farther."""
    if isinstance(imported.file[key], str):
        return f"no {what}: {imported.file[key]}"
    try:
        result = check_half.check_half(imported.file, imported.module, inputs, key=key)
    except Refusal as refusal:
        return f"{what} NOT LIKE PYTORCH'S: {first_line(refusal)}"
    except (RuntimeError, NotImplementedError) as error:
        return f"{what} isn't played on this CPU: {(str(error).splitlines() or [''])[0][:120]}"
    try:
        result.refuse_differences()
        verdict = what
    except Refusal:
        verdict = f"{what} NOT LIKE PYTORCH'S"
    return f"{verdict}  " + ", ".join(f"{name} {result.ours[name]:.1e} ({result.theirs[name]:.1e})" for name in ("output", "gradients"))


def try_one(job) -> str:
    name, limit, file = job
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            module, inputs = cases(file)[name]()
            start = time.monotonic()
            inputs = [spec.read_input(text) for text in inputs]
            prediction = "mse_loss"
            imported = import_model.import_module(import_model.Request(module, inputs, loss=prediction, half_parameters=True))
            middle = time.monotonic()
            result = check.check(imported.file, imported.module, inputs)
            end = time.monotonic()
            in_half = [half_text(imported, inputs, key, what) for key, what in (("half", "bf16"), ("half_parameters", "parameters in bf16"))]
        nodes = imported.file["nodes"]
        _, worst = result.worst()
        ok = "ok" if max(result.output, result.loss, worst) <= check.LIMIT else f"DIFFERS ({result.worst()[0]})"
        rows = all(b["rows"] for b in imported.file["bodies"].values())
        return (f"{name:44} {ok}  {len(nodes):4} nodes, {sum(n['op'] != 'aten' for n in nodes):3} known, {len(imported.file['bodies']):3} bodies, "
                f"{len(imported.file['units']):2} units, rows {'all' if rows else 'NOT ALL'}  output {result.output:.1e} gradient {worst:.1e}  "
                f"{middle - start:.1f} + {end - middle:.1f} s\n{'':46}" + f"\n{'':46}".join(in_half) + "".join(f"\n{'':46}note: {n}" for n in imported.notes))
    except Refusal as refusal:
        return f"{name:44} refused  " + f"\n{'':53}".join(str(refusal).splitlines()[:6])
    except TimeoutError:
        return f"{name:44} skipped  it takes more than {limit} s here"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{name:44} FAILED   {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]} ({at.name}, line {at.lineno})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("prefix", nargs="*", default=[""], help="what the names begin with")
    parser.add_argument("-j", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=int, default=300, help="seconds for each")
    parser.add_argument("--models", metavar="FILE.py", help="the builders of a file, in place of what is installed")
    args = parser.parse_args()
    names = [n for n in cases(args.models) if n.startswith(tuple(args.prefix or [""]))]
    counts = {}
    with multiprocessing.get_context("fork").Pool(args.j, maxtasksperchild=1) as pool:
        for line in pool.imap(try_one, [(n, args.limit, args.models) for n in names]):
            print(line, flush=True)
            verdict = line[45:].split()[0]
            counts[verdict] = counts.get(verdict, 0) + 1
    print(", ".join(f"{n} {verdict}" for verdict, n in counts.items()))


if __name__ == "__main__":
    main()
