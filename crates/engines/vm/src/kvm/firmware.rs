//! The test guest: its assembled instructions, placed in a firmware image.

use std::arch::global_asm;

/// The size of the image: QEMU takes multiples of this only.
const SIZE: usize = 64 << 10;

/// Where a processor begins after a reset.
const RESET_VECTOR: usize = 0xfff0;

global_asm!(
    ".pushsection .rodata.transhume_kvm_guest, \"a\"",
    ".globl transhume_kvm_guest",
    ".globl transhume_kvm_guest_end",
    "transhume_kvm_guest:",
    include_str!("guest.s"),
    "transhume_kvm_guest_end:",
    ".code64",
    ".popsection",
    options(att_syntax, raw)
);

unsafe extern "C" {
    static transhume_kvm_guest: u8;
    static transhume_kvm_guest_end: u8;
}

/// The firmware image.
pub fn image() -> Vec<u8> {
    let (start, end) = (&raw const transhume_kvm_guest, &raw const transhume_kvm_guest_end);
    // SAFETY: both symbols are in one read-only section, and the instructions and tables of the guest fill the bytes from the first one
    // to the second one.
    let code = unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) };
    let mut image = vec![0; SIZE];
    image[..code.len()].copy_from_slice(code);
    // A near jump to the beginning of the segment.
    let distance = (SIZE - RESET_VECTOR - 3) as u16;
    let [low, high] = distance.to_le_bytes();
    image[RESET_VECTOR..RESET_VECTOR + 3].copy_from_slice(&[0xe9, low, high]);
    image
}
