// SPDX-License-Identifier: Apache-2.0

// Package messages bounds what gRPC decodes. gRPC bounds a message's bytes, of which two are enough for
// one in a list, and in Go that takes 50 to 200.
package messages

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth is how many messages may be in one another.
const maxDepth = 100

var errDeep = fmt.Errorf("more than %d messages are in one another", maxDepth)

// Bounded is gRPC's codec for messages that have at most so many fields, those of the messages
// in them included. Others it does not decode.
func Bounded(fields int) encoding.CodecV2 {
	return bounded{encoding.GetCodecV2(proto.Name), fields}
}

type bounded struct {
	encoding.CodecV2
	fields int
}

// Unmarshal implements encoding.CodecV2.
func (b bounded) Unmarshal(data mem.BufferSlice, into any) error {
	if message, ok := into.(protoreflect.ProtoMessage); ok {
		buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buffer.Free()
		if err := Check(buffer.ReadOnlyData(), message.ProtoReflect().Descriptor(), b.fields); err != nil {
			return err
		}
	}
	return b.CodecV2.Unmarshal(data, into)
}

// Check reports whether the message has more fields than that. What is not well-formed is an error,
// too.
func Check(data []byte, as protoreflect.MessageDescriptor, fields int) error {
	_, err := count(data, as, fields, maxDepth)
	return err
}

// count returns how many fields are left of those that a message may have.
func count(data []byte, as protoreflect.MessageDescriptor, left, depth int) (int, error) {
	if depth == 0 {
		return 0, errDeep
	}
	for len(data) > 0 {
		if left--; left < 0 {
			return 0, fmt.Errorf("a message of %s has too many fields", as.FullName())
		}
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		data = data[size:]
		value := protowire.ConsumeFieldValue(number, kind, data)
		if value < 0 {
			return 0, protowire.ParseError(value)
		}
		inner := data[:value]
		data = data[value:]
		field := as.Fields().ByNumber(number)
		if field == nil || field.Message() == nil {
			continue
		}
		switch kind {
		case protowire.BytesType:
			inner, _ = protowire.ConsumeBytes(inner)
		case protowire.StartGroupType:
			inner, _ = protowire.ConsumeGroup(number, inner)
		default:
			continue
		}
		var err error
		if left, err = count(inner, field.Message(), left, depth-1); err != nil {
			return 0, err
		}
	}
	return left, nil
}
