//! The stream that a link holds: an enum, or a boxed trait object.

use std::any::Any;
use std::ops::{Deref, DerefMut};

use super::{Shm, Stream};

/// A stream. The variant for rings in memory avoids a virtual call, since each poll
/// looks at them.
pub(crate) enum Carrier {
    Rings(Box<Shm>),
    Other(Box<dyn Stream>),
}

impl Carrier {
    /// The rings that it consists of, if it does.
    #[inline]
    pub fn rings(&mut self) -> Option<&mut Shm> {
        match self {
            Self::Rings(rings) => Some(rings),
            Self::Other(_) => None,
        }
    }

    /// [`Stream::is_quiet`].
    #[inline]
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Rings(rings) => rings.is_quiet(),
            Self::Other(stream) => stream.is_quiet(),
        }
    }
}

impl From<Box<dyn Stream>> for Carrier {
    fn from(stream: Box<dyn Stream>) -> Self {
        if (&*stream as &dyn Any).is::<Shm>() {
            let stream: Box<dyn Any> = stream;
            return Self::Rings(stream.downcast().expect("it has just been found to be that"));
        }
        Self::Other(stream)
    }
}

impl Deref for Carrier {
    type Target = dyn Stream;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Rings(rings) => &**rings,
            Self::Other(stream) => &**stream,
        }
    }
}

impl DerefMut for Carrier {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Rings(rings) => &mut **rings,
            Self::Other(stream) => &mut **stream,
        }
    }
}
