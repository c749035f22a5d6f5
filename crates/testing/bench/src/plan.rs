//! The solver on public problems with known values, and on generated clusters.
//!
//! The readers only translate files into a [`solver::problem::Spec`]: `transhume plan` uses the same search.
//!
//! * [`clock`]: effort in CPU time. [`numbers`]: files of numbers.
//! * [`qaplib`]: quadratic assignment. [`roadef`]: machine reassignment. [`cluster`]: generated clusters.
//! * [`feasible`]: constraints by their definition.

pub mod clock;
pub mod cluster;
pub mod feasible;
pub mod numbers;
pub mod qaplib;
pub mod roadef;
