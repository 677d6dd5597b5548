module grpc-go

go 1.22

// This version takes END_STREAM on HEADERS for no half-close, which is what the test is about: do not raise it.
require google.golang.org/grpc v1.70.0

require (
	golang.org/x/net v0.32.0 // indirect
	golang.org/x/sys v0.28.0 // indirect
	golang.org/x/text v0.21.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20241202173237-19429a94021a // indirect
	google.golang.org/protobuf v1.35.2 // indirect
)
