//! The registered list.
