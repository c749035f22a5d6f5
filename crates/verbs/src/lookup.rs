//! The lookup list.
