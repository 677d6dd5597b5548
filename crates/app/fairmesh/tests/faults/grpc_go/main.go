// A client and a server of grpc-go, for tests of what it takes for the end of a stream of messages.
//
//	grpc-go serve                              listens on loopback, and prints its address
//	grpc-go call ADDRESS AUTHORITY MESSAGES    makes 20 client-streaming calls of so many messages each, one after the other
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
)

const (
	calls   = 20
	timeout = 5 * time.Second
	payload = 7
)

type server struct {
	grpc_testing.UnimplementedTestServiceServer
}

// StreamingInputCall responds with the size of all payloads once the client has closed its side.
func (server) StreamingInputCall(stream grpc_testing.TestService_StreamingInputCallServer) error {
	var size int32
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{AggregatedPayloadSize: size})
		}
		if err != nil {
			return err
		}
		size += int32(len(message.GetPayload().GetBody()))
	}
}

func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	serving := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(serving, server{})
	return serving.Serve(listener)
}

func call(address, authority string, messages int) error {
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(authority))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := grpc_testing.NewTestServiceClient(connection)
	for n := range calls {
		if err := stream(client, messages); err != nil {
			return fmt.Errorf("call %d: %w", n, err)
		}
	}
	fmt.Printf("%d calls\n", calls)
	return nil
}

func stream(client grpc_testing.TestServiceClient, messages int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stream, err := client.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	for range messages {
		message := &grpc_testing.StreamingInputCallRequest{Payload: &grpc_testing.Payload{Body: make([]byte, payload)}}
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	if size := int(response.GetAggregatedPayloadSize()); size != messages*payload {
		return fmt.Errorf("%d bytes arrived of %d", size, messages*payload)
	}
	return nil
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve()
	case len(args) == 4 && args[0] == "call":
		messages, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return call(args[1], args[2], messages)
	}
	return errors.New("give: serve, or: call ADDRESS AUTHORITY MESSAGES")
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
