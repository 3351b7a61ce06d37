//! Language models over MIL programs: tokenizers, chat templates, architectures, generation.
