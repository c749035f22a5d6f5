//! The directory of a fabric: after any requests of a hostile process, others still find published entries.

use fabric::directory::{Answer, Request};
use fabric::directory::{Directory, Member};
use fabric::{FabricId, ProcessId, Vid};

use crate::input::Input;

const OURS: &[u8] = b"ours";

fn member(fabric: u32, lid: u16, index: u8) -> Member {
    let vid = Vid::new(lid).expect("a small LID");
    Member { fabric: FabricId(fabric), process: ProcessId { vid, index } }
}

/// Runs hostile processes as the script says.
///
/// # Panics
/// If an honest one is affected.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let honest = member(1, 1, 1);
    let mut directory = Directory::default();
    directory.set_processes(honest.instance(), [1].into());
    let publish = Request::Publish { key: OURS.to_vec(), value: b"here".to_vec(), exclusive: true };
    assert_eq!(directory.ask(honest, 1, publish), Some(Answer::Done));
    while !input.is_empty() {
        let hostile =
            member(1 + u32::from(input.byte() & 1), 2 + u16::from(input.byte() & 3), input.byte().max(1));
        act(&mut directory, hostile, &mut input);
    }
    let found = directory.ask(honest, 2, Request::Look { key: OURS.to_vec() });
    let Some(Answer::Found(entries)) = found else { panic!("{found:?}") };
    assert_eq!(entries.len(), 1, "it was published as the only one");
    assert_eq!((entries[0].process, entries[0].value.as_slice()), (honest.process, &b"here"[..]));
}

fn act(directory: &mut Directory, hostile: Member, input: &mut Input<'_>) {
    let key = if input.coin() { OURS.to_vec() } else { input.bytes().to_vec() };
    let request = match input.below(6) {
        0 => Request::Publish { key, value: input.bytes().to_vec(), exclusive: input.coin() },
        1 => Request::Withdraw {
            key,
            value: if input.coin() { b"here".to_vec() } else { input.bytes().to_vec() },
        },
        2 => Request::Look { key },
        3 => Request::Watch {
            process: member(1, 1 + u16::from(input.byte() & 3), input.byte().max(1)).process,
        },
        4 => {
            let indexes = input.bytes().iter().copied().collect();
            directory.set_processes(hostile.instance(), indexes);
            return;
        }
        _ => {
            directory.end_instance(hostile.instance());
            return;
        }
    };
    let _ = directory.ask(hostile, u64::from(input.byte()), request);
}

/// Some of each.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let script: &[&[u8]] = &[
        &[0, 0, 1, 1, 0, 4, b'e', b'v', b'i', b'l', 1, 7],
        &[0, 0, 1, 1, 1, 1, 8],
        &[0, 0, 1, 0, 2, b'c', b'm', 2, 9],
        &[0, 1, 2, 1, 3, 0, 1, 5],
        &[0, 1, 2, 1, 4, 2, 1, 2],
        &[1, 1, 2, 1, 5],
    ];
    let all = script.concat();
    script.iter().map(|act| act.to_vec()).chain([all]).collect()
}
