"""The language server, ``fuscoc lsp``.

``server.py`` speaks the protocol, through pygls; ``names.py`` finds what is under the cursor and
where it is declared, ``hover.py`` says what it is, ``positions.py`` counts as editors do.
"""
