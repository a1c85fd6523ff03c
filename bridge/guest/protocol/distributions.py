"""Packages and their modules: one table for hints, errors and allow lists."""

from __future__ import annotations

DATA = tuple(
    """numpy pandas matplotlib scipy scikit-learn seaborn statsmodels polars pyarrow duckdb openpyxl
    xlsxwriter xlrd pillow requests httpx beautifulsoup4 lxml html5lib pypdf pdfplumber reportlab
    python-docx python-pptx sympy networkx plotly altair bokeh jinja2 tabulate pyyaml h5py geopandas
    python-dateutil pytz tqdm rich pydantic faker sqlalchemy regex orjson scikit-image shapely nltk
    opencv-python-headless imageio joblib wordcloud""".split()  # noqa: SIM905
)
"""The usual packages for data work; `@data` in an allow list."""

MODULES = {
    "Crypto": "pycryptodome", "IPython": "ipython", "PIL": "pillow", "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless", "dateutil": "python-dateutil", "docx": "python-docx",
    "dotenv": "python-dotenv", "fitz": "pymupdf", "jwt": "pyjwt", "magic": "python-magic",
    "matplotlib": "matplotlib", "mpl_toolkits": "matplotlib", "pptx": "python-pptx",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Modules that are not called as the package that has them."""

LIGHTER = {
    "opencv-contrib-python": "opencv-contrib-python-headless",
    "opencv-python": "opencv-python-headless",
    "tensorflow": "tensorflow-cpu",
    "xgboost": "xgboost-cpu",
}
"""Packages that need less of the machine than the one that is usually named."""


def normalize_name(name: str) -> str:
    """Return a package's name as names are compared; a "*" in it stays."""
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))


def distribution(module: str) -> str:
    return MODULES.get(module, module)


def module(name: str) -> str:
    """Return the module of a package in the table; empty for an unknown or equal name."""
    found = next((key for key, value in MODULES.items() if value == normalize_name(name)), "")
    return "" if found == name else found


def meant(name: str) -> str:
    """Return the package that a wrong name probably means, or an empty text."""
    import difflib  # slow, and only for errors

    name = normalize_name(name)
    for key, value in MODULES.items():
        if normalize_name(key) == name != value:
            return value
    near = difflib.get_close_matches(name, DATA, n=1, cutoff=0.75)
    return near[0] if near and near[0] != name else ""
