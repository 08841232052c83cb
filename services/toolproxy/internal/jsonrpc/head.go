package jsonrpc

import "bytes"

// What Head keeps of a message: longer keys are none of the envelope's, longer ids were not ours.
const (
	maxKeyBytes = 64
	maxIDBytes  = 1024
)

// Head finds the envelope of a message that passes by in pieces and is never held as a whole, wherever in it
// the id stands. It keeps a few bytes whatever the size of the message and does not validate it. The zero
// value is ready; [Head.Write] takes the pieces.
type Head struct {
	seen member
	id   []byte
	dead bool // no object, or an id that cannot be told: nothing will be found
	done bool // the object has ended

	depth   int
	quoted  bool // inside a string
	escaped bool // the next byte belongs to an escape
	inValue bool // at depth 1: behind the colon

	key     []byte // the raw key being read or last read at depth 1
	capture *[]byte
}

// Write looks at the next piece. It never fails.
func (h *Head) Write(p []byte) {
	for i := 0; i < len(p) && !h.dead && !h.done; {
		if h.quoted && !h.escaped && h.capture == nil {
			// The bulk of a large message is inside strings.
			i = plainRun(p, i)
			if i == len(p) {
				return
			}
		}
		h.step(p[i])
		i++
	}
}

// ID returns the id, or nil if none was seen, or several, or one that is neither an integer nor a string.
func (h *Head) ID() ID {
	id := bytes.TrimSpace(h.id)
	if h.dead || len(id) == 0 {
		return nil
	}
	if id[0] == '"' {
		if _, ok := unquote(id); !ok {
			return nil
		}
		return id
	}
	if !isInteger(id) {
		return nil
	}
	return id
}

// Answers reports whether the message has the marks of an answer to a request, as [Message.Answers].
func (h *Head) Answers() bool {
	return h.ID() != nil && h.seen&hasMethod == 0 && h.seen&(hasVersion|hasResult) != 0
}

// Asks reports whether the message has the marks of a request.
func (h *Head) Asks() bool { return h.ID() != nil && h.seen&hasMethod != 0 }

func (h *Head) step(c byte) {
	if h.quoted {
		h.keep(c)
		switch {
		case h.escaped:
			h.escaped = false
		case c == '\\':
			h.escaped = true
		case c == '"':
			h.quoted = false
			if h.depth == 1 && !h.inValue {
				h.capture = nil
			}
		}
		return
	}
	switch c {
	case ' ', '\t', '\n', '\r':
	case '"':
		h.quoted = true
		switch {
		case h.depth == 0:
			h.dead = true
		case h.depth == 1 && !h.inValue:
			h.key = h.key[:0]
			h.capture = &h.key
		}
		h.keep(c)
	case '{', '[':
		if h.depth == 0 && c == '[' {
			h.dead = true
			return
		}
		h.keep(c)
		h.depth++
	case '}', ']':
		h.depth--
		switch {
		case h.depth < 0:
			h.dead = true
		case h.depth == 0:
			h.endValue()
			h.done = true
		default:
			h.keep(c)
		}
	case ':':
		if h.depth == 1 && !h.inValue {
			h.beginValue()
			return
		}
		h.keep(c)
	case ',':
		if h.depth == 1 {
			h.endValue()
			return
		}
		h.keep(c)
	default:
		if h.depth == 0 {
			h.dead = true
			return
		}
		h.keep(c)
	}
}

// keep stores a byte of what is being captured; what grows too long is no longer of interest.
func (h *Head) keep(c byte) {
	if h.capture == nil {
		return
	}
	limit := maxKeyBytes
	if h.inValue {
		limit = maxIDBytes
	}
	if len(*h.capture) == limit {
		*h.capture = (*h.capture)[:0]
		h.capture = nil
		return
	}
	*h.capture = append(*h.capture, c)
}

func (h *Head) beginValue() {
	h.inValue = true
	key, _ := unquote(h.key)
	which := memberOf(key)
	if which == hasID {
		if h.seen&hasID != 0 {
			h.dead = true
			return
		}
		h.capture = &h.id
	}
	h.seen |= which
}

func (h *Head) endValue() {
	h.inValue = false
	h.capture = nil
	h.key = h.key[:0]
}
