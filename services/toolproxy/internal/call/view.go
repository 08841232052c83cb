package call

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/toolherd/toolherd/pkg/fault"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/services/toolproxy/internal/jsonrpc"
)

// maxBlocks bounds what a result becomes in memory when it is taken apart: a block of one byte takes more than a hundred.
const maxBlocks = 100_000

// view hands a tool's result over. raw is a JSON object.
func view(raw json.RawMessage, v toolproxyv1.ResultView) (*toolproxyv1.ToolResult, error) {
	if v == toolproxyv1.ResultView_RESULT_VIEW_JSON {
		return &toolproxyv1.ToolResult{ResultJson: text(raw)}, nil
	}
	return typed(raw)
}

// text returns raw JSON as a string that protobuf takes: invalid UTF-8 becomes U+FFFD.
func text(raw []byte) string { return strings.ToValidUTF8(string(raw), "\uFFFD") }

// optional returns raw JSON as text, and "" for null.
func optional(raw json.RawMessage) string {
	if jsonrpc.IsNull(raw) {
		return ""
	}
	return text(raw)
}

// typed takes a result apart. A content block that is not what its type promises is kept whole.
func typed(raw json.RawMessage) (*toolproxyv1.ToolResult, error) {
	r := &toolproxyv1.ToolResult{}
	for key, value := range jsonrpc.Members(raw) {
		switch string(key) {
		case "content":
			r.Content = nil
			if !jsonrpc.IsArray(value) && !jsonrpc.IsNull(value) {
				return nil, fault.New(fault.UpstreamProtocol, "the result's content is not an array")
			}
			for b := range jsonrpc.Elements(value) {
				if len(r.Content) == maxBlocks {
					return nil, fault.New(fault.PayloadTooLarge,
						"the result has more than %d content blocks; ask for it with view RESULT_VIEW_JSON, which takes any number", maxBlocks)
				}
				r.Content = append(r.Content, block(b))
			}
		case "structuredContent":
			r.StructuredContentJson = optional(value)
		case "isError":
			is, ok := boolean(value)
			if !ok {
				return nil, fault.New(fault.UpstreamProtocol, "the result's isError is not a boolean")
			}
			r.IsError = is
		case "_meta":
			r.MetaJson = optional(value)
		}
	}
	return r, nil
}

func boolean(raw json.RawMessage) (value, ok bool) {
	switch strings.TrimSpace(string(raw)) {
	case "true":
		return true, true
	case "false", "null":
		return false, true
	default:
		return false, false
	}
}

// fields are the members of a content block or resource as far as this version of MCP knows them.
type fields struct {
	bad bool // a member has the wrong type

	kind, text, data, mimeType, uri, name, title, description, blob *string

	size                               *int64
	annotations, meta, icons, resource json.RawMessage
}

func read(raw json.RawMessage) (f fields) {
	if !jsonrpc.IsObject(raw) {
		return fields{bad: true}
	}
	for key, value := range jsonrpc.Members(raw) {
		switch string(key) {
		case "type":
			f.string(&f.kind, value)
		case "text":
			f.string(&f.text, value)
		case "data":
			f.string(&f.data, value)
		case "mimeType":
			f.string(&f.mimeType, value)
		case "uri":
			f.string(&f.uri, value)
		case "name":
			f.string(&f.name, value)
		case "title":
			f.string(&f.title, value)
		case "description":
			f.string(&f.description, value)
		case "blob":
			f.string(&f.blob, value)
		case "size":
			if n, ok := jsonrpc.Int(value); ok {
				f.size = &n
			} else if !jsonrpc.IsNull(value) {
				f.bad = true
			}
		case "annotations":
			f.annotations = value
		case "_meta":
			f.meta = value
		case "icons":
			f.icons = value
		case "resource":
			f.resource = value
		}
	}
	return f
}

func (f *fields) string(dst **string, raw json.RawMessage) {
	s, ok := jsonrpc.String(raw)
	switch {
	case ok:
		s = strings.ToValidUTF8(s, "\uFFFD")
		*dst = &s
	case jsonrpc.IsNull(raw):
		*dst = nil
	default:
		f.bad = true
	}
}

// block converts one content block; nothing of it is dropped.
func block(raw json.RawMessage) *toolproxyv1.ContentBlock {
	f := read(raw)
	b := &toolproxyv1.ContentBlock{AnnotationsJson: optional(f.annotations), MetaJson: optional(f.meta)}
	if f.bad || f.kind == nil || !f.fill(b) {
		return &toolproxyv1.ContentBlock{Block: &toolproxyv1.ContentBlock_OtherJson{OtherJson: text(raw)}}
	}
	return b
}

// fill sets the block by its type, and reports false for a type that is unknown or not what it promises.
func (f *fields) fill(b *toolproxyv1.ContentBlock) bool {
	switch *f.kind {
	case "text":
		if f.text == nil {
			return false
		}
		b.Block = &toolproxyv1.ContentBlock_Text{Text: &toolproxyv1.TextContent{Text: *f.text}}
	case "image", "audio":
		data, ok := decode(f.data)
		if !ok {
			return false
		}
		media := &toolproxyv1.MediaContent{Data: data, MimeType: value(f.mimeType)}
		if *f.kind == "image" {
			b.Block = &toolproxyv1.ContentBlock_Image{Image: media}
		} else {
			b.Block = &toolproxyv1.ContentBlock_Audio{Audio: media}
		}
	case "resource_link":
		if f.uri == nil {
			return false
		}
		b.Block = &toolproxyv1.ContentBlock_ResourceLink{ResourceLink: &toolproxyv1.ResourceLink{
			Uri: *f.uri, Name: value(f.name), Title: value(f.title), Description: value(f.description),
			MimeType: value(f.mimeType), Size: f.size, IconsJson: optional(f.icons),
		}}
	case "resource":
		resource, ok := embedded(f.resource)
		if !ok {
			return false
		}
		b.Block = &toolproxyv1.ContentBlock_Resource{Resource: resource}
	default:
		return false
	}
	return true
}

func embedded(raw json.RawMessage) (*toolproxyv1.EmbeddedResource, bool) {
	f := read(raw)
	if f.bad || f.uri == nil {
		return nil, false
	}
	r := &toolproxyv1.EmbeddedResource{Uri: *f.uri, MimeType: value(f.mimeType), MetaJson: optional(f.meta)}
	switch {
	case f.text != nil && f.blob != nil:
		return nil, false
	case f.text != nil:
		r.Contents = &toolproxyv1.EmbeddedResource_Text{Text: *f.text}
	case f.blob != nil:
		blob, ok := decode(f.blob)
		if !ok {
			return nil, false
		}
		r.Contents = &toolproxyv1.EmbeddedResource_Blob{Blob: blob}
	default:
		return nil, false
	}
	return r, true
}

// decode reads base64.
func decode(data *string) ([]byte, bool) {
	if data == nil {
		return nil, false
	}
	b, err := base64.StdEncoding.DecodeString(*data)
	return b, err == nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
