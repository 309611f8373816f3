"""What has to be known of a data set to read it: which format, and where its fields lie."""
