"""A local web viewer where evidence can be seen and tested by hand."""
