from setuptools import setup

# The rooms of the package lie at the top level of the repository; this map puts them under one import name.
FOLDERS = {
    "wedlm": "wedlm",
    "wedlm.modeling_wedlm": "modeling_wedlm",
    "wedlm.generation": "generation",
    "wedlm.training": "training",
    "wedlm.hub_card": "hub_card",
    "wedlm.hub_card.demo": "hub_card/demo",
    "wedlm.hub_card.evaluation": "hub_card/evaluation",
}

setup(
    name="wedlm",
    version="0.1.0",
    description="WeDLM, a language model that decodes several tokens per forward, native to transformers",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=list(FOLDERS),
    package_dir=FOLDERS,
    python_requires=">=3.11",
    # (rich and huggingface_hub are requirements of typer and transformers, and are imported here as well.)
    install_requires=["huggingface_hub", "rich", "torch>=2.11", "transformers>=5.17,<6", "typer>=0.29"],
    entry_points={"console_scripts": ["wedlm = wedlm.cli:app"]},
    package_data={
        "wedlm": ["trace_page.html"],
        "wedlm.training": ["configs/*"],
        "wedlm.hub_card": ["wedlm-demo/*", "card_template.md"],
        "wedlm.hub_card.demo": ["lm_eval_tasks/*"],
        "wedlm.hub_card.evaluation": ["recipes/*"],
    },
    extras_require={
        "train": ["accelerate>=1.13", "datasets>=4.5", "matplotlib>=3.9", "peft>=0.19"],
        "eval": ["accelerate>=1.13", "evaluate>=0.4.6", "lm_eval>=0.4.13,<0.5"],
        "serve": ["fastapi>=0.120", "openai>=1.98", "uvicorn>=0.35"],
        "browser": ["selenium>=4.20"],
        "dev": ["bitsandbytes>=0.48", "hypothesis", "numpy", "pytest>=8", "pytest-xdist", "ruff"],
    },
)
