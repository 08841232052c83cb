package jsonrpc

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

type envelope struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{10, 10 << 10, 1 << 20} {
		text := strings.Repeat("some text with a \\\"quote\\\" ", size/27+1)
		msg := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":12345,"result":{"content":[{"type":"text","text":"%s"}]}}`, text)
		b.Run(fmt.Sprintf("bytes=%d/scanner", len(msg)), func(b *testing.B) {
			b.SetBytes(int64(len(msg)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("bytes=%d/encoding-json", len(msg)), func(b *testing.B) {
			b.SetBytes(int64(len(msg)))
			b.ReportAllocs()
			for b.Loop() {
				var e envelope
				if err := json.Unmarshal(msg, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendRequest(b *testing.B) {
	params := json.RawMessage(`{"name":"echo","arguments":{"text":"hi there","n":[1,2,3]}}`)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = AppendRequest(buf[:0], 12345, "tools/call", params)
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(envelope{JSONRPC: "2.0", ID: json.RawMessage("12345"), Method: "tools/call", Params: params}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkHead(b *testing.B) {
	msg := fmt.Appendf(nil, `{"result":{"content":[{"type":"text","text":"%s"}]},"jsonrpc":"2.0","id":1}`, strings.Repeat("some text ", 1<<20))
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		var h Head
		h.Write(msg)
		if string(h.ID()) != "1" {
			b.Fatal("no id")
		}
	}
}
