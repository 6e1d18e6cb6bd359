"""Training loops as short as they can be written by hand: what dpcompare's own loop is measured against."""
