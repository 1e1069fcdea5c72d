"""`kit init`: look at a site, write its profile and a first job."""
