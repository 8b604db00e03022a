"""The persistent kernel cache: keys, storage, and compiling each kernel once on the machine."""
