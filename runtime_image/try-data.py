# Uses each package of the `data` flavour; an image in which one does not work is not built.
import bs4
import docx
import jinja2
import lxml.etree
import matplotlib.pyplot
import numpy
import openpyxl
import pandas
import PIL.Image
import pypdf
import scipy.optimize
import scipy.signal
import scipy.stats
import sklearn.ensemble
import sklearn.linear_model
import sympy
import tabulate
import xlsxwriter

frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0], "y": [2.0, 4.0, 6.0]})
assert sklearn.linear_model.LinearRegression().fit(frame[["x"]], frame["y"]).coef_.round(6) == [2]
assert numpy.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).tolist() == [1.0, 1.0]
assert bs4.BeautifulSoup(frame.to_html(), "lxml").find("table")
assert frame.to_markdown() and frame.style.to_html()
assert str(sympy.integrate("2*x")) == "x**2"
