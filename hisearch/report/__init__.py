"""Figures of a study and its self-contained offline HTML report.

``data`` is what a report is made from, ``words`` its wordings, ``figures`` its drawings, ``pages`` the HTML.
Imports ``search`` and what is below it; ``api`` and ``cli`` import from here.
"""
