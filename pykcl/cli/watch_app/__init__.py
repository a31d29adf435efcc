"""`pykcl leases watch`: a lease table as a terminal program that only reads.

`looks` scans, in a thread of its own, and makes frames; `columns` and `words` make lines of text of a frame; `rows`,
`sheets` and `app` show them with textual; `snapshot` prints one picture without a terminal. Only the last four need
textual.
"""
