//! Identifiers: create, bind, resolve, listen, destroy.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cm::{Addresses, Service};
use libc::{c_int, c_void, sockaddr};
use verbs_abi::{rdma_cm_id, rdma_event_channel};

use crate::address;
use crate::channel::ChannelObject;
use crate::errno::{Errno, INVALID, Result, status};
use crate::event;
use crate::happening::Happening;
use crate::id::{Id, Stage, random, type_of};
use crate::manager::{Manager, Purpose};
use crate::multicast;
use waiting::{lock, uncancelled};

/// The range of ephemeral ports, and how many are tried.
const EPHEMERAL: std::ops::Range<u32> = 32_768..61_000;
const TRIES: u32 = 64;

/// Requests that wait for a program which does not say how many may.
const BACKLOG: usize = 1024;

/// The next port to be given.
fn ephemeral() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = EPHEMERAL.end - EPHEMERAL.start;
    // A process begins at a random port, so that two processes of an instance seldom want the same.
    let _ = NEXT.compare_exchange(0, 1 + random() % count, Ordering::Relaxed, Ordering::Relaxed);
    let port = EPHEMERAL.start + NEXT.fetch_add(1, Ordering::Relaxed) % count;
    u16::try_from(port).unwrap_or(u16::MAX)
}

/// The address to which a socket bound to `local` is bound.
fn bound_to(local: IpAddr, only_family: bool) -> Addresses {
    match local {
        one if !address::is_any(one) => Addresses::One(one.to_canonical()),
        IpAddr::V4(_) => Addresses::Ipv4,
        IpAddr::V6(_) if only_family => Addresses::Ipv6,
        IpAddr::V6(_) => Addresses::Any,
    }
}

impl Id {
    fn service(&self, address: IpAddr, port: u16) -> Service {
        Service { space: self.c.ps as u16, address: address.to_canonical(), port }
    }

    /// Binds to `local`, and makes its port this identifier's own.
    pub(crate) fn bind(&mut self, local: SocketAddr) -> Result<()> {
        if lock(&self.core.state).stage != Stage::Idle {
            return Err(INVALID);
        }
        let manager = Manager::get()?;
        if local.port() != 0 {
            return self.claim(manager, local);
        }
        let mut result = Err(Errno(libc::EADDRINUSE));
        for _ in 0..TRIES {
            result = self.claim(manager, SocketAddr::new(local.ip(), ephemeral()));
            if result != Err(Errno(libc::EADDRINUSE)) {
                break;
            }
        }
        result
    }

    fn claim(&mut self, manager: &Manager, local: SocketAddr) -> Result<()> {
        let (only_family, published) = {
            let state = lock(&self.core.state);
            (state.only_family, state.published)
        };
        let wanted = bound_to(local.ip(), only_family);
        let own = address::own()?.into_iter().filter(|address| wanted.include(*address));
        let key = |address| self.service(address, local.port()).key(manager.device.lid);
        let keys: Vec<_> = own.map(key).collect();
        if keys.is_empty() && matches!(wanted, Addresses::One(_)) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        manager.directory.claim(self.core.holder(), &keys, &manager.value(published))?;
        {
            let mut state = lock(&self.core.state);
            state.local = Some(local);
            state.claimed = keys;
            state.stage = Stage::Bound;
        }
        self.show_addresses();
        Ok(())
    }

    fn resolve(
        &mut self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        limit: Duration,
    ) -> Result<()> {
        self.begin_resolving(source, destination, limit)?;
        self.complete()
    }

    /// Resolves the route to `destination`; an event reports the result.
    pub(crate) fn begin_resolving(
        &mut self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        limit: Duration,
    ) -> Result<()> {
        let manager = Manager::get()?;
        let stage = lock(&self.core.state).stage;
        match source {
            Some(source) if stage == Stage::Idle && source.port() != 0 => self.bind(source)?,
            _ => {}
        }
        let from = self.source(source, destination)?;
        {
            let mut state = lock(&self.core.state);
            state.go_on(&[Stage::Idle, Stage::Bound], Stage::Resolving)?;
            state.local = Some(from);
            state.remote = Some(destination);
        }
        self.show_addresses();
        if destination.ip().is_multicast() {
            self.core.resolved(true);
            self.core.push(Happening::AddressResolved);
            return Ok(());
        }
        let service = self.service(destination.ip(), destination.port());
        let asked = manager.look_up(&self.core, service, Purpose::Resolve, Some(limit));
        if asked.is_err() {
            self.core.resolved(false);
        }
        asked
    }

    /// The source of a request to `destination`. The port of an unbound identifier is unique in this process
    /// for a while, which is enough: numbers of their own distinguish connections.
    fn source(&self, wanted: Option<SocketAddr>, destination: SocketAddr) -> Result<SocketAddr> {
        let bound = lock(&self.core.state).local.or(wanted);
        let port = bound.map(|bound| bound.port()).filter(|port| *port != 0).unwrap_or_else(ephemeral);
        let address = match bound.map(|bound| bound.ip()).filter(|ip| !address::is_any(*ip)) {
            Some(address) => address,
            None => address::source_for(destination)?,
        };
        Ok(SocketAddr::new(address, port))
    }

    fn resolve_route(&mut self) -> Result<()> {
        self.begin_routing()?;
        self.complete()
    }

    /// Resolves the route; an event reports that it is there.
    pub(crate) fn begin_routing(&mut self) -> Result<()> {
        lock(&self.core.state).go_on(&[Stage::Resolved], Stage::Routed)?;
        self.show_path();
        self.core.push(Happening::RouteResolved);
        Ok(())
    }

    pub(crate) fn listen(&mut self, backlog: c_int) -> Result<()> {
        let manager = Manager::get()?;
        if lock(&self.core.state).stage == Stage::Idle {
            self.bind(([0, 0, 0, 0], 0).into())?;
        }
        let (local, only_family) = {
            let mut state = lock(&self.core.state);
            state.go_on(&[Stage::Bound], Stage::Listening)?;
            (state.local.ok_or(INVALID)?, state.only_family)
        };
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(BACKLOG);
        let addresses = bound_to(local.ip(), only_family);
        manager.listen(&self.core, self.c.ps as u16, addresses, local.port(), backlog);
        Ok(())
    }

    /// In a synchronous identifier, waits for the event that completes a call.
    pub(crate) fn complete(&mut self) -> Result<()> {
        if !self.synchronous {
            return Ok(());
        }
        self.acknowledge_own();
        // SAFETY: the channel is the identifier's own.
        self.c.event = unsafe { event::next(self.c.channel)? };
        // SAFETY: the event was just made.
        let (event, code) = unsafe { ((*self.c.event).event, (*self.c.event).status) };
        match code {
            0 => Ok(()),
            _ if event == verbs_abi::cm_event::RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
            // Why a service for datagrams has refused.
            1.. => Err(Errno(libc::ECONNREFUSED)),
            code => Err(Errno(-code)),
        }
    }

    /// Acknowledges the event that completed the last call.
    pub(crate) fn acknowledge_own(&mut self) {
        if !self.c.event.is_null() {
            // SAFETY: the event is the identifier's, and not used again.
            unsafe { event::acknowledge(self.c.event) };
            self.c.event = std::ptr::null_mut();
        }
    }
}

/// Ends an identifier: waits until the program has acknowledged all its events.
///
/// # Safety
/// `id` is a live identifier, and is not used again.
pub(crate) unsafe fn destroy(id: *mut rdma_cm_id) {
    let (core, channel, synchronous) = {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::of(id) };
        id.acknowledge_own();
        (id.core.clone(), id.c.channel, id.synchronous)
    };
    if core.is_inherited() {
        // Nothing of it is this process', nor whole for sure: it is not even dropped.
        std::mem::forget(core);
    } else {
        // SAFETY: the caller's promise.
        multicast::leave_all(unsafe { Id::of(id) });
        match Manager::current() {
            Some(manager) => manager.abandon(&core),
            None => drop(core.withdraw()),
        }
        core.acks.wait();
    }
    // SAFETY: the caller's promise; a synchronous identifier's channel is its own.
    unsafe {
        Id::free(id);
        if synchronous {
            ChannelObject::destroy(channel);
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    if id.is_null() {
        return status(|| Err(INVALID));
    }
    status(|| {
        Manager::get()?;
        let created = Id::create(channel, context, space, type_of(space)?)?;
        // SAFETY: the contract of the connection manager: `id` can be written.
        unsafe { id.write(created) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return status(|| Err(INVALID));
    }
    // SAFETY: the contract of the connection manager: a live identifier, which is not used again.
    uncancelled(|| unsafe { destroy(id) });
    0
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    // SAFETY: the contract of the connection manager: a live identifier, and a whole address.
    status(|| unsafe { Id::given(id).and_then(|id| id.bind(address::read(address)?)) })
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let limit = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    // SAFETY: as above; without a source it is chosen.
    status(|| unsafe {
        Id::given(id).and_then(|id| {
            let source = if source.is_null() { None } else { Some(address::read(source)?) };
            id.resolve(source, address::read(destination)?, limit)
        })
    })
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(Id::resolve_route) })
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id).and_then(|id| id.listen(backlog)) })
}

/// Gives the identifier another channel, to which its events move; without one it becomes synchronous.
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: as above.
    status(|| unsafe { Id::given(id) }.and_then(|id| migrate(id, channel)))
}

pub(crate) fn migrate(id: &mut Id, channel: *mut rdma_event_channel) -> Result<()> {
    let synchronous = channel.is_null();
    let channel = if synchronous { ChannelObject::create()? } else { channel };
    let before = (id.c.channel, id.synchronous);
    if id.synchronous {
        id.acknowledge_own();
    }
    // SAFETY: the program's or a fresh channel.
    let to = &unsafe { ChannelObject::of(channel) }.channel;
    match Manager::current() {
        Some(manager) => manager.migrate(&id.core, to),
        None => id.core.migrate(to),
    }
    (id.c.channel, id.synchronous) = (channel, synchronous);
    if before.1 {
        // SAFETY: the channel was the identifier's own, and no thread uses it any more.
        unsafe { ChannelObject::destroy(before.0) };
    }
    Ok(())
}
