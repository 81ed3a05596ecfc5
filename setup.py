import sys
from pathlib import Path

from setuptools import Extension, setup

ADDRESS = ""  # of the public repository, such as https://github.com/OWNER/wedlm; empty: the metadata name none

# The subpackages of the package, four of them at the top level of the repository. Each may import only those before it
# (tests/repository/test_map.py). The last one is the public module, whose public names point into the subpackages.
FOLDERS = {
    "wedlm.generation": "generation",
    "wedlm.modeling_wedlm": "modeling_wedlm",
    "wedlm.batching": "wedlm/batching",
    "wedlm.fused": "wedlm/fused",
    "wedlm.checkpoints": "wedlm/checkpoints",
    "wedlm.training": "training",
    "wedlm.evaluation": "wedlm/evaluation",
    "wedlm.hub_card": "hub_card",
    "wedlm.drafts": "wedlm/drafts",
    "wedlm.serving": "wedlm/serving",
    "wedlm.for_vllm": "wedlm/for_vllm",
    "wedlm.commands": "wedlm/commands",
    "wedlm": "wedlm",
}


def pages_of(address: str) -> dict[str, str]:
    pages = {"Documentation": "tree/main/docs", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
    return {name: f"{address}/{page}" for name, page in pages.items()} if address else {}


# Without a C compiler it is left out, and torch multiplies. So it is on Windows: MSVC, Python's compiler there, lacks
# the vectors of GCC and clang, GCC does not align them on the stack there, and a long is too short for offsets.
EXTENSIONS = [
    Extension(
        "wedlm.fused._kernels",
        ["wedlm/fused/forward.c", "wedlm/fused/module.c"],
        depends=[str(path) for path in Path("wedlm/fused").glob("*.h")],
        extra_compile_args=["-O3", "-g0", "-Wall", "-Wextra"],  # without what debuggers read: half of the time
        libraries=["m", "dl", "pthread"],  # the last two are part of newer C libraries only
        py_limited_api=True,
        optional=True,
    )
]

setup(
    name="wedlm",
    version="0.4.0.dev0",
    description="WeDLM, a language model that decodes several tokens per forward, native to transformers",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    author="The maintainers of WeDLM for transformers",
    license="Apache-2.0",
    url=ADDRESS or None,
    project_urls=pages_of(ADDRESS) | {"Paper": "https://arxiv.org/abs/2512.22737"},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: C",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=list(FOLDERS),
    package_dir=FOLDERS,
    python_requires=">=3.11",
    # rich and huggingface_hub come with typer and transformers; they are named because the package imports them.
    install_requires=["huggingface_hub", "rich", "torch>=2.11", "transformers>=5.17,<6", "typer>=0.29"],
    entry_points={
        "console_scripts": ["wedlm = wedlm.commands.cli:app"],
        "vllm.general_plugins": ["wedlm = wedlm.for_vllm.plugin:register"],
    },
    ext_modules=[] if sys.platform == "win32" else EXTENSIONS,
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    package_data={
        "wedlm": ["py.typed"],
        "wedlm.training": ["configs/*"],
        "wedlm.evaluation": ["recipes/*"],
        "wedlm.hub_card": ["wedlm-demo/*", "card_template.md", "verified-decoding/README.md"],
        "wedlm.drafts": ["prompts.jsonl.xz"],
        "wedlm.commands": ["trace_page.html"],
    },
    extras_require={
        "train": ["accelerate>=1.13", "datasets>=4.5", "matplotlib>=3.9", "peft>=0.21"],
        "eval": ["accelerate>=1.13", "evaluate>=0.4.6", "lm_eval>=0.4.13,<0.5"],
        "serve": [
            "fastapi>=0.120",
            "openai>=1.99",
            "prometheus_client>=0.20",
            "pydantic>=2.10",
            "typing_extensions",
            "uvicorn>=0.35",
        ],
        "gguf": ["gguf>=0.17"],
        "grammar": ["xgrammar>=0.2.8"],
        "browser": ["selenium>=4.20"],
        "notebook": ["ipykernel>=6", "nbclient>=0.10"],
        "ecosystem": ["deepspeed>=0.19", "trl>=1.16"],
        "dev": [
            "auditwheel>=6",
            "bitsandbytes>=0.48",
            "build>=1",
            "gguf>=0.17",
            "hypothesis",
            "mypy",
            "numpy",
            "pytest>=8",
            "pytest-cov",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "types-PyYAML",
        ],  # fmt: skip
    },
)
