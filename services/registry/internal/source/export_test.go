package source

import "github.com/toolherd/toolherd/pkg/serverconfig"

// ReadWith makes f read files with read.
func (f *Files) ReadWith(read func(path string) ([]byte, serverconfig.Signature, error)) {
	f.read = read
}
