//! The implementations of the exports, under their C names.

pub(crate) use crate::address::*;
pub(crate) use crate::channel::*;
pub(crate) use crate::compat::*;
pub(crate) use crate::context::*;
pub(crate) use crate::cq::*;
pub(crate) use crate::devices::*;
pub(crate) use crate::directory::*;
pub(crate) use crate::domain::*;
pub(crate) use crate::fork::*;
pub(crate) use crate::import::*;
pub(crate) use crate::memory::*;
pub(crate) use crate::memory_change::*;
pub(crate) use crate::multicast::*;
pub(crate) use crate::qp::*;
pub(crate) use crate::query::*;
pub(crate) use crate::rates::*;
pub(crate) use crate::srq::*;
pub(crate) use crate::text::*;
