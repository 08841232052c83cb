package agentrun

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/toolherd/toolherd/services/notifier/internal/notification"
	"github.com/toolherd/toolherd/services/notifier/internal/sink"
)

// untrusted returns the event as JSON that does no harm in a prompt, whether it is pasted as it is or read first: in every
// text and name what a model may take for the end of the data, or for the voice of somebody else, is broken up. Numbers
// stay as they are.
func untrusted(e notification.Event) (string, error) {
	data, err := sink.Data(e)
	if err != nil {
		return "", err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "", fmt.Errorf("body of event %s: %w", e.ID, err)
	}
	out, err := sink.Encode(neutralise(v))
	if err != nil {
		return "", err
	}
	var escaped bytes.Buffer
	json.HTMLEscape(&escaped, out) // the rest of < > & too, which changes no value
	return escaped.String(), nil
}

func neutralise(v any) any {
	switch v := v.(type) {
	case string:
		return neutral(v)
	case []any:
		for i := range v {
			v[i] = neutralise(v[i])
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			out[neutral(name)] = neutralise(value)
		}
		return out
	default:
		return v
	}
}

var (
	// A tag: <system>, < /system >, <!-- and <?xml, and the <|im_start|> and <<SYS>> of chat templates.
	tag = regexp.MustCompile(`<+(?:[/!?|\pL_]|\s+/?\s*[\pL_][\pL\pN_.:-]*\s*/?>)`)
	// A marker in brackets: [INST], [/INST], [SYSTEM …].
	bracket = regexp.MustCompile(`(?i)\[(/?\s*(?:inst|sys|system|user|assistant|tool)\b)`)
	// A fence with a word of beginning or ending: ----- END UNTRUSTED DATA -----, === begin event ===.
	fence = regexp.MustCompile("(?i)[-=_*#~`>]{3,}(\\s*(?:begin|end|start|stop)\\b)")
	// The voice of somebody else at the start of a line, as transcripts have it: Human:, Assistant:, System:.
	voice = regexp.MustCompile(`(?im)^(\s*)(human|user|assistant|system|developer)(\s*):`)
)

// neutral returns text with everything of that kind broken up, so that people can still read it.
func neutral(text string) string {
	if !strings.ContainsAny(text, "<[:-=_*#~`>") {
		return text
	}
	text = tag.ReplaceAllStringFunc(text, func(m string) string { return strings.ReplaceAll(m, "<", "&lt;") })
	text = bracket.ReplaceAllString(text, "($1")
	text = fence.ReplaceAllString(text, "-$1")
	return voice.ReplaceAllString(text, "$1$2$3 -")
}
