"""Raw input: files of foreign records, cut into parts and read, one record's bytes at a time."""
