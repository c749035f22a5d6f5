//! Structures that know their own layout, so that a test can compare it with the C compiler's.

/// A field's place in its structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its C name.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
}

/// A structure's size and fields.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its C name, without `struct`.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// In order of declaration.
    pub fields: &'static [Field],
}

/// Defines `repr(C)` structures and the list `LAYOUTS` of them.
macro_rules! c_structs {
    ($( $(#[$attribute:meta])* struct $name:ident { $( $(#[$note:meta])* $field:ident : $type:ty ),* $(,)? } )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $( $(#[$note])* pub $field: $type, )* }
        )*

        pub(crate) const LAYOUTS: &[$crate::Layout] = &[ $( $crate::Layout {
            name: stringify!($name),
            size: std::mem::size_of::<$name>(),
            align: std::mem::align_of::<$name>(),
            fields: &[ $( $crate::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
            }, )* ],
        }, )* ];
    };
}
