//! The owner's table of names.
