//! Instances that are virtual machines, by QEMU.
//!
//! ```text
//! node
//!   ┊ QMP over a Unix socket                        the instance's network namespace
//! init ── first process, in a PID namespace of its own; sends the serial console to the node
//!   └ QEMU ══ vm0, a TAP ═ redirected frames ═ eth0, the wired device
//! ```
//!
//! QEMU runs beside the node and outlives it: the next node finds the process by its record, and connects to its QMP socket again.
//!
//! A move maps to a live migration of QEMU, whose stream goes over the move's channel `ram`:
//!
//! ```text
//! source                                      destination
//!   │                                  prepare  QEMU starts with -S -incoming defer, and offers empty local disks
//!   │ precopy  blockdev-mirror                  takes blocks, and the guest's writes
//!   │ precopy  migrate                          loads memory
//!   │          (runs on, throttled)             │
//!   │ suspend  pre-switchover: stopped          │
//!   │          link cut, mirrors end, migrate-continue
//!   │          postmigrate                      paused
//!   ┊                                  restore  held
//!   ┊ the move commits, or rolls back           ┊
//!   │ resume   cont                    release  link mended, cont
//! ```
//!
//! **Never two running**: a QEMU at the destination starts its processors only by `cont`, which only [`release`](destination) sends. A
//! QEMU at the source stays in `postmigrate` until [`resume`](source).
//!
//! * [`engine`]: the engine, and one machine on its host. [`config`]: its configuration. [`lock`]: locks.
//! * [`source`], [`destination`]: the two sides of a move. [`migration`]: QEMU's migration as both follow it.
//!   [`stall`]: notices that the other host takes no data.
//! * [`machine`]: a machine's resources on this host. [`record`]: its durable record. [`recovering`]: finds it after a restart of the node.
//! * [`command`]: QEMU's command line. [`emulator`]: the installed QEMU and its abilities. [`qmp`]: the client of its control socket.
//! * [`memory`]: the memory that machines have reserved. [`limits`]: their cgroups. [`kvm`]: whether KVM works on this host.
//!   [`processor`]: the host's processor.
//! * [`network`]: the TAP. [`inbox`]: frames that wait there. [`dhcp`]: tells the guest its address there. [`console`]: serial output that has not reached the node.
//! * [`seed`]: the disk with tools for the guest and data for cloud-init.
//! * [`disks`]: formats, options and files of disks. [`mirror`]: local disks that move along.
//! * [`checkpoint`]: machines in files. [`sink`]: takes the files of a machine.
//! * [`needs`]: the needs of a machine at its destination. [`error`]: errors.

mod checkpoint;
mod command;
mod config;
mod console;
mod destination;
mod dhcp;
mod disks;
mod emulator;
mod engine;
mod error;
mod inbox;
mod kvm;
mod limits;
mod lock;
mod machine;
mod memory;
mod migration;
mod mirror;
mod needs;
mod network;
mod processor;
pub mod qmp;
mod record;
mod recovering;
mod seed;
mod sink;
mod source;
mod stall;

pub use config::Config;
pub use engine::VmEngine;
