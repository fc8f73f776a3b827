// Asks for a passkey when a form that needs one is sent, and puts what it signed into the form.
//
// A form says so by its data: data-passkey="get" or "create", data-challenge, data-rp-id, and for "get" data-credential
// (empty: any passkey of this site), for "create" data-user-name and data-user-id. Bytes are base64url. What the person
// reads when it fails is in the element [data-passkey-problem] of the form: it is hidden until then.
"use strict";
(() => {
  const bytesOf = (text) => {
    const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(plain, (one) => one.charCodeAt(0));
  };
  const textOf = (buffer) => {
    const plain = String.fromCharCode(...new Uint8Array(buffer));
    return btoa(plain).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  };

  const signed = async (data) => {
    const allowed = data.credential ? [{ type: "public-key", id: bytesOf(data.credential) }] : [];
    const found = await navigator.credentials.get({
      publicKey: {
        challenge: bytesOf(data.challenge),
        rpId: data.rpId,
        allowCredentials: allowed,
        userVerification: "required",
      },
    });
    return {
      credential: found.id,
      client_data: textOf(found.response.clientDataJSON),
      authenticator_data: textOf(found.response.authenticatorData),
      signature: textOf(found.response.signature),
    };
  };

  const made = async (data) => {
    const found = await navigator.credentials.create({
      publicKey: {
        challenge: bytesOf(data.challenge),
        rp: { id: data.rpId, name: document.title },
        user: { id: bytesOf(data.userId), name: data.userName, displayName: data.userName },
        pubKeyCredParams: [-7, -8, -257].map((alg) => ({ type: "public-key", alg })),
        authenticatorSelection: { residentKey: "required", userVerification: "required" },
        attestation: "none",
      },
    });
    return {
      client_data: textOf(found.response.clientDataJSON),
      authenticator_data: textOf(found.response.getAuthenticatorData()),
      public_key: textOf(found.response.getPublicKey()),
    };
  };

  const put = (form, name, value) => {
    let field = form.elements.namedItem(name);
    if (!field) {
      field = document.createElement("input");
      field.type = "hidden";
      field.name = name;
      form.append(field);
    }
    field.value = value;
  };

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.dataset.passkey) {
      return;
    }
    event.preventDefault();
    const problem = form.querySelector("[data-passkey-problem]");
    const button = event.submitter;
    problem.hidden = true;
    if (button) {
      button.disabled = true;
    }
    try {
      const parts = await (form.dataset.passkey === "create" ? made(form.dataset) : signed(form.dataset));
      Object.entries(parts).forEach(([name, value]) => put(form, name, value));
      form.submit();
    } catch {
      // The person closed the prompt, or there is no passkey here: nothing was signed, and nothing is sent.
      problem.hidden = false;
      if (button) {
        button.disabled = false;
      }
    }
  });
})();
