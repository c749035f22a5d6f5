//! The offloads of this host's kernel that work.

use std::io;

use overlay_io::kernel::Kernel;
use overlay_io::offloads::Offloads;

/// The offloads of `wanted` that this host's kernel does correctly.
pub async fn usable_offloads(wanted: Offloads) -> Offloads {
    let tried = tokio::task::spawn_blocking(move || wanted.probe()).await;
    let offloads = tried.map_err(io::Error::other).and_then(|probed| probed).unwrap_or_else(|error| {
        tracing::warn!("the kernel's offloads cannot be tested, and are not used: {error}");
        Offloads::NONE
    });
    if wanted.kernel && !Kernel::is_built() {
        tracing::warn!(
            "the kernel forwards no frames between stations: this program was built without clang"
        );
    }
    if offloads != wanted {
        tracing::warn!("usable kernel offloads: {offloads:?}");
    }
    offloads
}

/// The kernel's forwarding of frames, if it is one of the `offloads` and works here.
pub async fn carrying_kernel(offloads: &mut Offloads) -> Option<Kernel> {
    if !offloads.kernel {
        return None;
    }
    let of_taps = offloads.of_taps();
    let made = tokio::task::spawn_blocking(move || Kernel::new(of_taps)).await;
    let kernel = made.map_err(io::Error::other).and_then(|made| made).inspect_err(|error| {
        tracing::warn!("the kernel forwards no frames between stations: {error}");
    });
    offloads.kernel = kernel.is_ok();
    kernel.ok()
}
