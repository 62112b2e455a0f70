"""What the toys of this folder are made of: `paragauge import tests/models/toy.py:gpt_toy -o tests/models/gpt_toy.json`."""

from models import GPT, Llama, options


@options(input=["i64[B,4]<7"], optimizer="adamw:lr=0.01", global_batch=8, description="GPT-2's architecture, tiny (tests)")
def gpt_toy():
    return GPT(7, 4, 2, 8, 4)


@options(input=["i64[B,4]<8"], optimizer="adamw:lr=0.01", global_batch=8, description="Llama's architecture, tiny (tests)")
def llama_toy():
    return Llama(8, 1, 8, 4, 4, 8, 10000)


@options(input=["i64[B,4]<8"])
def stubborn_llama():
    """A module that refuses to be played."""
    def refuse(*_):
        raise RuntimeError("not today")

    llama = llama_toy()
    llama.register_forward_pre_hook(refuse)
    return llama
