//! The implementations of the exports, under their C names.

pub(crate) use crate::addrinfo::*;
pub(crate) use crate::bind::*;
pub(crate) use crate::connect::*;
pub(crate) use crate::endpoint::*;
pub(crate) use crate::event::*;
pub(crate) use crate::multicast::*;
pub(crate) use crate::option::*;
pub(crate) use crate::qp::*;
pub(crate) use crate::route::*;
pub(crate) use crate::rsocket::*;
