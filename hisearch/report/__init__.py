"""Figures of a study and its self-contained offline HTML report.

``data`` holds a report's input, ``words`` its texts, ``figures`` its drawings, ``pages`` the HTML.
Imports ``search`` and the layers below it; ``api`` and ``cli`` import from here.
"""
