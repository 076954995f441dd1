//! The header of a packet: `struct virtio_vsock_hdr` (Virtual I/O Device 1.2, 5.10.6).

/// Bytes of the header.
pub(super) const HEADER_LEN: usize = 44;
/// Bytes of data that a packet has at most, as Linux's.
pub(super) const DATA_MAX: usize = 64 << 10;
/// The type of sockets that are streams of bytes; there are no others here.
pub(super) const STREAM: u16 = 1;
/// The sender of a `Shutdown` receives no more.
pub(super) const NO_RECEIVE: u32 = 1;
/// It sends no more.
pub(super) const NO_SEND: u32 = 2;

/// Operations, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Op {
    Request = 1,
    Response = 2,
    Reset = 3,
    Shutdown = 4,
    Data = 5,
    CreditUpdate = 6,
    CreditRequest = 7,
}

impl Op {
    /// The operation of a number, if there is one.
    pub(super) const fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }

    pub(super) const fn number(self) -> u16 {
        self as u16
    }
}

/// A header. Nothing in it is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    pub(super) len: u32,
    pub(super) kind: u16,
    pub(super) op: u16,
    pub(super) flags: u32,
    /// Bytes of data that the sender has room for.
    pub(super) buf_alloc: u32,
    /// Bytes of data that have left that room so far, modulo 2^32.
    pub(super) fwd_cnt: u32,
}

impl Header {
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        Self {
            src_cid: u64::from_le_bytes(part(bytes, 0)),
            dst_cid: u64::from_le_bytes(part(bytes, 8)),
            src_port: u32::from_le_bytes(part(bytes, 16)),
            dst_port: u32::from_le_bytes(part(bytes, 20)),
            len: u32::from_le_bytes(part(bytes, 24)),
            kind: u16::from_le_bytes(part(bytes, 28)),
            op: u16::from_le_bytes(part(bytes, 30)),
            flags: u32::from_le_bytes(part(bytes, 32)),
            buf_alloc: u32::from_le_bytes(part(bytes, 36)),
            fwd_cnt: u32::from_le_bytes(part(bytes, 40)),
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let parts = [
            &self.src_cid.to_le_bytes()[..],
            &self.dst_cid.to_le_bytes(),
            &self.src_port.to_le_bytes(),
            &self.dst_port.to_le_bytes(),
            &self.len.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &self.op.to_le_bytes(),
            &self.flags.to_le_bytes(),
            &self.buf_alloc.to_le_bytes(),
            &self.fwd_cnt.to_le_bytes(),
        ];
        parts.concat().try_into().expect("44 bytes")
    }

    /// The packet that refuses this one.
    pub(super) fn refusal(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: Op::Reset.number(),
            ..Self::default()
        }
    }
}

/// The bytes of a field.
fn part<const LEN: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; LEN] {
    bytes[at..at + LEN].try_into().expect("as many")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_standard_has_them() {
        let bytes: [u8; HEADER_LEN] =
            std::array::from_fn(|at| u8::try_from(at).expect("44 at most"));
        let header = Header::decode(&bytes);
        assert_eq!(header.src_cid, 0x0706_0504_0302_0100);
        assert_eq!((header.src_port, header.dst_port), (0x1312_1110, 0x1716_1514));
        assert_eq!((header.len, header.kind, header.op), (0x1b1a_1918, 0x1d1c, 0x1f1e));
        assert_eq!((header.flags, header.fwd_cnt), (0x2322_2120, 0x2b2a_2928));
        assert_eq!(header.encode(), bytes);
        for number in 0..=u16::MAX {
            assert!(Op::of(number).is_none_or(|op| op.number() == number));
        }
    }
}
