"""The wire contract without I/O: frames, codecs, and the machines of connection, session, stream."""
