package protocol

import "encoding/hex"

// maxUUIDLen is the maximum length of a uuid in bytes. A longer value makes the
// lock malformed; those of all known clients are far shorter.
const maxUUIDLen = 256

// uuid stores a canonical uuid (lower-case hex, dashes in place) in 16 bytes and
// any other text as it is, so that exactly this value can be compared in etcd.
type uuid struct {
	bytes [16]byte
	text  *string
}

// uuidDashes are the positions of the dashes in the canonical form.
var uuidDashes = [...]int{8, 13, 18, 23}

func parseUUID(v []byte) uuid {
	var u uuid
	if u.parseCanonical(v) {
		return u
	}
	text := string(v)
	return uuid{text: &text}
}

func (u *uuid) parseCanonical(v []byte) bool {
	if len(v) != 36 {
		return false
	}
	var digits [32]byte
	n := 0
	for i, b := range v {
		switch dash := i == uuidDashes[0] || i == uuidDashes[1] || i == uuidDashes[2] || i == uuidDashes[3]; {
		case dash && b == '-':
		case !dash && (isDigit(b) || 'a' <= b && b <= 'f'):
			digits[n] = b
			n++
		default:
			return false
		}
	}
	_, err := hex.Decode(u.bytes[:], digits[:])
	return err == nil
}

func (u *uuid) String() string {
	if u.text != nil {
		return *u.text
	}
	var b [36]byte
	at, from := 0, 0
	for _, dash := range uuidDashes {
		n := (dash - at) / 2
		hex.Encode(b[at:dash], u.bytes[from:from+n])
		b[dash] = '-'
		at, from = dash+1, from+n
	}
	hex.Encode(b[at:], u.bytes[from:])
	return string(b[:])
}
